//! Builds the lab kernel and runs programs in it.
