"""Images, sound and documents that messages carry: stored once, by their hash, beside the spans that refer to them."""
