//! The file system over devices in memory. One program, so that what all have in common is compiled once.

#[path = "../common/mod.rs"]
mod common;

mod behind;
mod crash;
mod earlier_formats;
mod faults;
mod growth;
mod model;
mod places;
mod promises;
mod quotas;
mod snapshots;
