//! Variables of the environment, one by one or from files.

use std::ffi::OsString;

use clap::Args;
use mgmt_api::Bytes;

use crate::units::{VariablesFile, parse_env, parse_env_file};

#[derive(Args, Debug)]
pub struct Variables {
    /// Set a variable; KEY alone takes the value it has here.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_env())]
    env: Vec<OsString>,
    /// Set the variables of a file, a line each, as with --env, which wins; not lines that begin with '#'.
    #[arg(long, value_name = "FILE", value_parser = parse_env_file())]
    env_file: Vec<VariablesFile>,
}

impl Variables {
    /// In the order in which the later one wins.
    pub fn all(self) -> impl Iterator<Item = OsString> {
        self.env_file.into_iter().flat_map(|file| file.0).chain(self.env)
    }

    pub fn of_request(self) -> Vec<Bytes> {
        self.all().map(Bytes::from).collect()
    }

    pub fn add(&mut self, variables: impl IntoIterator<Item = OsString>) {
        self.env.extend(variables);
    }
}
