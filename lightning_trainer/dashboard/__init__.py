"""The web dashboard: what is running, what an agent did, why it got its reward, and which version is served.

``site`` is what the pages are given, ``reading`` queries the store, ``pages`` make the values that templates show, and
``sessions`` decides who may look and act. Pages are rendered here; the script only refreshes them and localizes times.
"""
