"""Formats that only one provider speaks, whole and streamed: as text, since none of them returns token ids."""
