"""``[[policy]]``: what a set of weights is, whose calls it answers, and how it is trained."""
