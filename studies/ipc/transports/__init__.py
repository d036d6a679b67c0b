"""One file for each transport, with an instance of it as `TRANSPORT`, and the file's name in `MODULES`.

To add a transport, derive three small classes from those in `ipc/place.py`:

- `Transport` has the transport's name and needs (`name`, `module`, `packages`, `interpreter`), says whether a user can
  fill the sent buffer itself (`loans`) and whether it is `ours`, and makes the other two, each in its own process. If
  something else must start the nodes, such as a daemon or a launcher, it overrides `commands`, and `environment` for
  variables. Nodes that are not started by `python -m ipc.node` use that module's `Sending` and `Reports`, as in
  `ray_store.py`.
- `Sender` has `send(array)` for a private array; if the transport loans, `load(array)`, which fills a loaned buffer,
  and `send_loaded()`. A sender that runs user code later than its call, as in a reaction, sets `begun_ns` to the time
  of that code.
- `Receiver.run(take)` calls `take(view)` with each message as a one-dimensional array of bytes, until that returns
  False.

A node reads from its `Place` the number of other nodes, the longest message, and a folder and a name that only its
group has. No message may be lost. A receiver waits without spinning. A file imports the measured package only in the
processes of its nodes, because the study itself runs without these packages.
"""

MODULES = (
    "coorp_rti",
    "coorp_direct",
    "coorp_memory",
    "coorp_spin",
    "iceoryx",
    "shared_block",
    "plasma",
    "ray_store",
    "dora",
    "zenoh_shm",
    "cyclone",
    "pickled",
)
"""The transports, in the order of the tables; ours come first."""
