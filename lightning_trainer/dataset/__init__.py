"""Files in, files out: samples, demonstrations and preference pairs built without a daemon."""
