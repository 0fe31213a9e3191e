"""The platform there is."""
