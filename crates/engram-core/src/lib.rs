//! Pure replay.
