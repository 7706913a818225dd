"""How reliable judges are, measured from recorded verdicts."""
