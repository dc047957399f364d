//! A broker and its parties in one process. One program, so that what all have in common is compiled once.

#[path = "../common/mod.rs"]
mod common;

mod binding;
mod conformance;
mod deadlock;
mod delegation;
mod handover;
mod local;
mod pairs;
mod privileges;
mod stand_in;
