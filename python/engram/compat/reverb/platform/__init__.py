"""Where Reverb keeps what depends on the platform."""
