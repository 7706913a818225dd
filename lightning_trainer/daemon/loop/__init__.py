"""The training loop of one policy: collect, build, train, publish, and go on after a crash."""
