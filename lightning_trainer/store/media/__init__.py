"""Images, sound, and documents in messages: stored once, by their hash, next to the spans that refer to them."""
