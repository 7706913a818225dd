"""The trainer in Ray actors, and the Ray that they run in."""
