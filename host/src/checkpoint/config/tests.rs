//! Configurations and what they mean.
