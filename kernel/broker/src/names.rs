//! Who is called what: a table for directories.

use std::collections::HashMap;

use abi::{DcId, Endpoint, EndpointName, IpcError};

/// Names of the endpoints of all containers: one of an endpoint at most, and one endpoint of a name.
#[derive(Clone, Debug, Default)]
pub struct Names {
    holders: HashMap<(DcId, EndpointName), Endpoint>,
    names: HashMap<(DcId, Endpoint), EndpointName>,
}

impl Names {
    /// First come, first served. `EndpointInUse`: somebody else has the name. `TableFull`: the endpoint has another
    /// one. Doing it again is safe.
    pub fn claim(&mut self, dc: DcId, endpoint: Endpoint, name: EndpointName) -> Result<(), IpcError> {
        match (self.holder(dc, name), self.of(dc, endpoint)) {
            (Some(holder), _) if holder != endpoint => Err(IpcError::EndpointInUse),
            (None, Some(_)) => Err(IpcError::TableFull),
            _ => {
                self.set(dc, endpoint, Some(name));
                Ok(())
            }
        }
    }

    pub fn holder(&self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        self.holders.get(&(dc, name)).copied()
    }

    pub fn of(&self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        self.names.get(&(dc, endpoint)).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (DcId, Endpoint, EndpointName)> {
        self.names.iter().map(|((dc, endpoint), name)| (*dc, *endpoint, *name))
    }

    /// The endpoint is called so from now on, whoever was before.
    pub fn set(&mut self, dc: DcId, endpoint: Endpoint, name: Option<EndpointName>) {
        self.end(dc, endpoint);
        if let Some(name) = name {
            if let Some(before) = self.holders.insert((dc, name), endpoint) {
                self.names.remove(&(dc, before));
            }
            self.names.insert((dc, endpoint), name);
        }
    }

    /// The endpoint is called nothing any more.
    pub fn end(&mut self, dc: DcId, endpoint: Endpoint) {
        if let Some(name) = self.names.remove(&(dc, endpoint)) {
            self.holders.remove(&(dc, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DC: DcId = DcId(1);

    #[test]
    fn name_has_one_endpoint_and_an_endpoint_one_name() {
        let [one, other] = [b"one", b"two"].map(|name| EndpointName::new(name).unwrap());
        let mut names = Names::default();
        assert_eq!(names.claim(DC, Endpoint::FS, one), Ok(()));
        assert_eq!(names.claim(DC, Endpoint::FS, one), Ok(()));
        assert_eq!(names.claim(DC, Endpoint::DS, one), Err(IpcError::EndpointInUse));
        assert_eq!(names.claim(DC, Endpoint::FS, other), Err(IpcError::TableFull));
        assert_eq!(names.claim(DcId(2), Endpoint::DS, one), Ok(()), "of another container");
        names.set(DC, Endpoint::DS, Some(one));
        assert_eq!((names.holder(DC, one), names.of(DC, Endpoint::FS)), (Some(Endpoint::DS), None));
        names.set(DC, Endpoint::DS, Some(other));
        assert_eq!(names.holder(DC, one), None);
        names.end(DC, Endpoint::DS);
        assert_eq!(names.holder(DC, other), None);
        names.end(DcId(2), Endpoint::DS);
        assert!(names.holders.is_empty() && names.names.is_empty());
    }
}
