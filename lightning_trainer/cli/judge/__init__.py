"""Having recorded attempts judged, and how far a judge is right."""
