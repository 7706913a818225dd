"""Formats specific to one provider, whole and streamed: as text, because none of them returns token ids."""
