"""The page that people look at: what is running, what an agent did, why it was rewarded so, which version is served.

``site`` says what the pages are given, ``reading`` asks the store, ``pages`` make what the templates show, ``access``
says who may look and act. Everything is rendered here; the script only keeps a page fresh and shows times as local.
"""
