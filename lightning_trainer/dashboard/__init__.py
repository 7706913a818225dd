"""The web dashboard: what is running, what an agent did, why it got its reward, and which version is served.

``site`` holds what pages are made from, ``reading`` queries the store, ``pages`` makes the values that templates show,
and ``sessions`` decides who may look and act. Pages are rendered on the server; the script in them only refreshes them
and localizes times.
"""
