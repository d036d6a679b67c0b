"""`coorp learn --live`: learning over live nodes, in `coorp emu`.

Each robot is a process (robot.py) in its own network namespace. The process that started them (run.py) is the world: it
runs the environment on the wall clock (link.py).
"""
