"""What tests of several folders share: stores, writers, models, programs in other processes."""
