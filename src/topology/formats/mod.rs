//! One file a format.

mod dot;
mod json;
mod range;
mod read;
mod toml;
mod tree;
mod units;
