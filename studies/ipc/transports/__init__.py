"""One file a transport, with an instance of it as `TRANSPORT`, and the file's name in `MODULES`.

To add a transport, derive three small classes from those in `ipc/place.py`:

- `Transport` says what it is called and needs (`name`, `module`, `packages`, `interpreter`), whether a user can fill
  the buffer that is sent (`loans`), whether it is `ours`, and makes the other two, each in a process of its own. If
  something else must start the nodes, such as a daemon or a launcher, it overrides `commands`, and `environment` for
  variables. Nodes that do not come from `python -m ipc.node` use its `Sending` and `Reports`, as in `ray_store.py`.
- `Sender` has `send(array)` for a private array; if the transport loans, `load(array)`, which fills a loaned buffer,
  and `send_loaded()`. A sender that runs user code later than its call, as in a reaction, sets `begun_ns` to that
  moment.
- `Receiver.run(take)` calls `take(view)` with each message as a one-dimensional array of bytes, until that returns
  False.

A node reads from its `Place` how many others there are, the longest message, and a folder and a name that only its
group has. Nothing may be lost. A receiver waits without spinning. A file imports what it measures only in the
processes of its nodes, because the study itself runs without these packages.
"""

MODULES = (
    "iceoryx",
    "shared_block",
    "plasma",
    "ray_store",
    "dora",
    "zenoh_shm",
    "cyclone",
    "pickled",
)
"""In the order of the tables; ours come first."""
