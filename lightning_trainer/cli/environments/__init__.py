"""Commands about environments: list, install or try one, play many attempts, make scenarios."""
