"""How far judges can be believed, by what is recorded of them."""
