"""Formats specific to one provider, whole and streamed; recorded as text, because none of them returns token ids."""
