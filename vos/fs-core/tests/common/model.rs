//! What the file system should do, written down as simply as possible; and random operations on both.

use std::collections::BTreeMap;

use vos_api::fs as api;
use vos_api::fs::valid;
use zerocopy::{FromZeros, IntoBytes};

use super::{Client, Random, attr_of, create_data, rename_data};

pub const FILE_BYTES_MAX: u64 = 3 << 20;
const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "long-name-that-needs-some-bytes", "ü"];

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Node {
    pub mode: u32,
    pub links: u32,
    pub mtime: u64,
    pub data: Vec<u8>,
    pub entries: BTreeMap<String, u64>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub parent: u64,
}

const KIND: u32 = 0o170_000;
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

impl Node {
    fn is_dir(&self) -> bool {
        self.mode & KIND == DIR
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
}

#[derive(Clone, Debug)]
pub enum Op {
    Make { op: u16, parent: u64, name: String },
    Symlink { parent: u64, name: String, target: String },
    Place { parent: u64, name: String, data: Vec<u8> },
    Write { ino: u64, offset: u64, data: Vec<u8> },
    Append { ino: u64, data: Vec<u8> },
    Truncate { ino: u64, bytes: u64 },
    Punch { ino: u64, offset: u64, bytes: u64, mode: u16 },
    Copy { source: u64, target: u64, from: u64, to: u64, bytes: u64 },
    Unlink { parent: u64, name: String },
    Rmdir { parent: u64, name: String },
    Rename { from: u64, to: u64, old: String, new: String, flags: u16 },
    Link { ino: u64, parent: u64, name: String },
    SetXattr { ino: u64, name: String, value: Vec<u8> },
    RemoveXattr { ino: u64, name: String },
    Chmod { ino: u64, mode: u32 },
}

impl Model {
    pub fn new() -> Model {
        let root = Node { mode: DIR | 0o755, links: 2, parent: 1, ..Node::default() };
        Model { nodes: [(1, root)].into() }
    }

    fn inos(&self, want: impl Fn(&Node) -> bool) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| want(node)).map(|(ino, _)| *ino).collect()
    }

    pub fn random_op(&self, random: &mut Random) -> Op {
        let dirs = self.inos(Node::is_dir);
        let files = self.inos(|node| node.mode & KIND == FILE);
        let all = self.inos(|_| true);
        let name = |random: &mut Random| (*random.pick(&NAMES)).to_owned();
        let parent = *random.pick(&dirs);
        if files.is_empty() {
            return Op::Make { op: api::MKNOD, parent, name: name(random) };
        }
        let ino = *random.pick(&files);
        match random.below(100) {
            0..=8 => Op::Make { op: api::MKNOD, parent, name: name(random) },
            9..=13 => Op::Place { parent, name: name(random), data: random_data(random) },
            14..=19 => Op::Make { op: api::MKDIR, parent, name: name(random) },
            20..=21 => Op::Symlink { parent, name: name(random), target: format!("to/{}", random.below(1000)) },
            22..=44 => Op::Write { ino, offset: self.random_offset(ino, random), data: random_data(random) },
            45..=51 => Op::Append { ino, data: random_data(random) },
            52..=57 => Op::Truncate { ino, bytes: self.random_offset(ino, random) },
            58..=62 => Op::Punch {
                ino,
                offset: self.random_offset(ino, random),
                bytes: 1 + random.below(40_000),
                mode: *random.pick(&[3, 16, 17]),
            },
            63..=65 => Op::Copy {
                source: ino,
                target: *random.pick(&files),
                from: self.random_offset(ino, random),
                to: self.random_offset(ino, random),
                bytes: random.below(30_000),
            },
            66..=73 => Op::Unlink { parent, name: name(random) },
            74..=76 => Op::Rmdir { parent, name: name(random) },
            77..=87 => Op::Rename {
                from: parent,
                to: *random.pick(&dirs),
                old: name(random),
                new: name(random),
                flags: *random.pick(&[0, 0, 0, 1, 2]),
            },
            88..=91 => Op::Link { ino: *random.pick(&all), parent, name: name(random) },
            92..=95 => Op::SetXattr {
                ino: *random.pick(&all),
                name: format!("user.{}", random.below(4)),
                value: vec![random.below(256) as u8; random.below(300) as usize],
            },
            96 => Op::RemoveXattr { ino: *random.pick(&all), name: format!("user.{}", random.below(4)) },
            _ => Op::Chmod { ino: *random.pick(&all), mode: random.below(0o10000) as u32 },
        }
    }

    fn random_offset(&self, ino: u64, random: &mut Random) -> u64 {
        let bytes = self.nodes[&ino].data.len() as u64;
        let offset = match random.below(6) {
            0 => 0,
            1 => bytes,
            2 => bytes + random.below(20_000),
            3 => random.below(FILE_BYTES_MAX),
            4 => random.below(bytes + 1) / 4096 * 4096,
            _ => random.below(bytes + 1),
        };
        offset.min(FILE_BYTES_MAX)
    }

    /// Does the operation to the model. `made` is the number that the file system gave to a new inode.
    pub fn apply(&mut self, op: &Op, time: u64, made: u64) -> Result<(), u32> {
        match op {
            Op::Make { op, parent, name } => {
                let mode = if *op == api::MKDIR { DIR | 0o700 } else { FILE | 0o600 };
                let (links, home) = if *op == api::MKDIR { (2, *parent) } else { (1, 0) };
                self.add(*parent, name, made, Node { mode, links, mtime: time, parent: home, ..Node::default() }, time)
            }
            Op::Symlink { parent, name, target } => {
                let data = target.as_bytes().to_vec();
                self.add(
                    *parent,
                    name,
                    made,
                    Node { mode: LINK | 0o777, links: 1, mtime: time, data, ..Node::default() },
                    time,
                )
            }
            Op::Place { parent, name, data } => {
                let node =
                    Node { mode: FILE | 0o640, links: 1, mtime: time + 1, data: data.clone(), ..Node::default() };
                self.add(*parent, name, made, node, time)
            }
            Op::Write { ino, offset, data } => self.write(*ino, *offset as usize, data, time),
            Op::Append { ino, data } => self.write(*ino, self.nodes[ino].data.len(), data, time),
            Op::Truncate { ino, bytes } => {
                let node = self.node(*ino);
                node.data.resize(*bytes as usize, 0);
                node.mtime = time;
                Ok(())
            }
            Op::Punch { ino, offset, bytes, mode } => {
                self.node(*ino).mtime = time;
                let data = &mut self.node(*ino).data;
                let end = (offset + bytes) as usize;
                if *mode == 16 && end > data.len() {
                    data.resize(end, 0);
                }
                let end = end.min(data.len());
                if (*offset as usize) < end {
                    data[*offset as usize..end].fill(0);
                }
                Ok(())
            }
            Op::Copy { source, target, from, to, bytes } => {
                if source == target && *from < to + bytes && *to < from + bytes {
                    return Err(22);
                }
                let data = &self.nodes[source].data;
                let start = (*from as usize).min(data.len());
                let part = data[start..(start + *bytes as usize).min(data.len())].to_vec();
                self.write(*target, *to as usize, &part, time)
            }
            Op::Unlink { parent, name } => {
                let ino = self.child(*parent, name).ok_or(2u32)?;
                if self.nodes[&ino].is_dir() {
                    return Err(21);
                }
                self.drop_name(*parent, name, time);
                self.unlink(ino);
                Ok(())
            }
            Op::Rmdir { parent, name } => {
                let ino = self.child(*parent, name).ok_or(2u32)?;
                self.check_empty_dir(ino)?;
                self.drop_name(*parent, name, time);
                self.node(*parent).links -= 1;
                self.nodes.remove(&ino);
                Ok(())
            }
            Op::Rename { from, to, old, new, flags } => self.rename([*from, *to], [old, new], *flags, time),
            Op::Link { ino, parent, name } => {
                if self.nodes[ino].is_dir() {
                    return Err(1);
                }
                if self.child(*parent, name).is_some() {
                    return Err(17);
                }
                self.node(*ino).links += 1;
                self.put_name(*parent, name, *ino, time);
                Ok(())
            }
            Op::SetXattr { ino, name, value } => {
                self.node(*ino).xattrs.insert(name.clone(), value.clone());
                Ok(())
            }
            Op::RemoveXattr { ino, name } => self.node(*ino).xattrs.remove(name).map(drop).ok_or(61),
            Op::Chmod { ino, mode } => {
                let node = self.node(*ino);
                node.mode = node.mode & KIND | mode;
                Ok(())
            }
        }
    }

    fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).expect("an inode of the model")
    }

    fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.nodes[&parent].entries.get(name).copied()
    }

    fn put_name(&mut self, parent: u64, name: &str, ino: u64, time: u64) {
        let node = self.node(parent);
        node.entries.insert(name.to_owned(), ino);
        node.mtime = time;
    }

    fn drop_name(&mut self, parent: u64, name: &str, time: u64) {
        let node = self.node(parent);
        node.entries.remove(name);
        node.mtime = time;
    }

    fn add(&mut self, parent: u64, name: &str, ino: u64, mut node: Node, time: u64) -> Result<(), u32> {
        if self.child(parent, name).is_some() {
            return Err(17);
        }
        if self.nodes[&parent].mode & 0o2000 != 0 && node.is_dir() {
            node.mode |= 0o2000;
        }
        self.node(parent).links += u32::from(node.is_dir());
        self.put_name(parent, name, ino, time);
        self.nodes.insert(ino, node);
        Ok(())
    }

    fn write(&mut self, ino: u64, offset: usize, data: &[u8], time: u64) -> Result<(), u32> {
        if data.is_empty() {
            return Ok(());
        }
        let node = self.node(ino);
        if node.data.len() < offset + data.len() {
            node.data.resize(offset + data.len(), 0);
        }
        node.data[offset..offset + data.len()].copy_from_slice(data);
        node.mtime = time;
        Ok(())
    }

    fn unlink(&mut self, ino: u64) {
        let node = self.node(ino);
        node.links -= 1;
        if node.links == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn check_empty_dir(&self, ino: u64) -> Result<(), u32> {
        match &self.nodes[&ino] {
            node if !node.is_dir() => Err(20),
            node if !node.entries.is_empty() => Err(39),
            _ => Ok(()),
        }
    }

    fn is_inside(&self, mut directory: u64, ino: u64) -> bool {
        loop {
            if directory == ino {
                return true;
            }
            if directory == 1 {
                return false;
            }
            directory = self.nodes[&directory].parent;
        }
    }

    fn rename(&mut self, [from, to]: [u64; 2], [old, new]: [&String; 2], flags: u16, time: u64) -> Result<(), u32> {
        let source = self.child(from, old).ok_or(2u32)?;
        let target = self.child(to, new);
        match (flags, target) {
            (1, Some(_)) => return Err(17),
            (2, None) => return Err(2),
            _ => (),
        }
        if flags == 2 {
            let target = target.expect("checked");
            if source == target {
                return Ok(());
            }
            for (ino, home) in [(source, to), (target, from)] {
                if self.nodes[&ino].is_dir() && self.is_inside(home, ino) {
                    return Err(22);
                }
            }
            for (ino, old_home, home) in [(source, from, to), (target, to, from)] {
                if self.nodes[&ino].is_dir() {
                    self.node(ino).parent = home;
                    self.node(old_home).links -= 1;
                    self.node(home).links += 1;
                }
            }
            self.put_name(from, old, target, time);
            self.put_name(to, new, source, time);
            return Ok(());
        }
        let is_dir = self.nodes[&source].is_dir();
        if is_dir && self.is_inside(to, source) {
            return Err(22);
        }
        if let Some(target) = target {
            if target == source {
                return Ok(());
            }
            match (is_dir, self.nodes[&target].is_dir()) {
                (true, false) => return Err(20),
                (false, true) => return Err(21),
                (true, true) => {
                    self.check_empty_dir(target)?;
                    self.node(to).links -= 1;
                    self.nodes.remove(&target);
                }
                (false, false) => self.unlink(target),
            }
        }
        self.drop_name(from, old, time);
        self.put_name(to, new, source, time);
        if is_dir {
            self.node(source).parent = to;
            self.node(from).links -= 1;
            self.node(to).links += 1;
        }
        Ok(())
    }
}

fn random_data(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(10) {
        0..=4 => random.below(300),
        5..=7 => random.below(20_000),
        8 => 4096 * (1 + random.below(8)),
        _ => random.below(200_000),
    };
    let mut data = vec![random.below(256) as u8; bytes as usize];
    for chunk in data.chunks_mut(512) {
        chunk[0] = random.below(256) as u8;
    }
    data
}

/// Does the operation to the file system; answers its errno and the inode it made.
pub fn run(client: &mut Client, op: &Op, time: u64) -> (u32, u64) {
    let reply = match op {
        Op::Make { op, parent, name } => {
            client.make(*op, *parent, name, if *op == api::MKDIR { 0o700 } else { FILE | 0o600 }, time)
        }
        Op::Symlink { parent, name, target } => {
            let mut data = create_data(name, 0o777, time);
            data.push(0);
            data.extend_from_slice(target.as_bytes());
            client.change(api::SYMLINK, 0, [*parent, name.len() as u64, 0], &data)
        }
        Op::Place { parent, name, data } => {
            let all = [create_data(name, 0o640, time), data.clone()].concat();
            client.change(api::PLACE, 0, [*parent, name.len() as u64, time + 1], &all)
        }
        Op::Write { ino, offset, data } => client.write(*ino, *offset, data, time),
        Op::Append { ino, data } => client.change(api::WRITE, api::APPEND, [*ino, 0, time], data),
        Op::Truncate { ino, bytes } => {
            let set = api::SetAttr { valid: valid::BYTES.into(), bytes: (*bytes).into(), ..api::SetAttr::new_zeroed() };
            client.change(api::SETATTR, 0, [*ino, time, 0], set.as_bytes())
        }
        Op::Punch { ino, offset, bytes, mode } => {
            client.change(api::FALLOCATE, *mode, [*ino, *offset, *bytes], &time.to_le_bytes())
        }
        Op::Copy { source, target, from, to, bytes } => {
            let words: Vec<u8> = [*from, *to, *bytes, time].iter().flat_map(|word| word.to_le_bytes()).collect();
            client.change(api::COPY_RANGE, 0, [*source, *target, 0], &words)
        }
        Op::Unlink { parent, name } => client.change(api::UNLINK, 0, [*parent, 0, time], name.as_bytes()),
        Op::Rmdir { parent, name } => client.change(api::RMDIR, 0, [*parent, 0, time], name.as_bytes()),
        Op::Rename { from, to, old, new, flags } => {
            client.change(api::RENAME, *flags, [*from, *to, time], &rename_data(old, new))
        }
        Op::Link { ino, parent, name } => client.change(api::LINK, 0, [*ino, *parent, time], name.as_bytes()),
        Op::SetXattr { ino, name, value } => {
            let data = [name.as_bytes(), value].concat();
            client.change(api::SETXATTR, 0, [*ino, name.len() as u64, time], &data)
        }
        Op::RemoveXattr { ino, name } => client.change(api::REMOVEXATTR, 0, [*ino, time, 0], name.as_bytes()),
        Op::Chmod { ino, mode } => {
            let set = api::SetAttr { valid: valid::MODE.into(), mode: (*mode).into(), ..api::SetAttr::new_zeroed() };
            client.change(api::SETATTR, 0, [*ino, time, 0], set.as_bytes())
        }
    };
    let makes = matches!(op, Op::Make { .. } | Op::Symlink { .. } | Op::Place { .. });
    let made = if makes && reply.status == 0 { attr_of(&reply).ino.get() } else { 0 };
    (reply.status, made)
}

/// The file system's whole tree as a model.
pub fn dump(client: &Client) -> Model {
    dump_at(client, api::ROOT)
}

/// The tree that a snapshot of this root shows, as a model: with the numbers that its inodes had.
pub fn dump_at(client: &Client, root: u64) -> Model {
    let mut nodes = BTreeMap::new();
    let mut open = vec![(root, root)];
    let own = |ino: u64| ino & ((1 << 44) - 1);
    while let Some((ino, parent)) = open.pop() {
        let attr = client.attr(ino);
        let mode = attr.mode.get();
        let mut node = Node { mode, links: attr.links.get(), mtime: attr.mtime_ns.get(), ..Node::default() };
        match mode & KIND {
            DIR => {
                node.parent = own(parent);
                for (name, child) in client.list(ino) {
                    assert_eq!(client.lookup(ino, &name), Some(child));
                    assert!(node.entries.insert(name, own(child)).is_none(), "a name twice in directory {ino}");
                    if !nodes.contains_key(&own(child)) {
                        open.push((child, ino));
                    }
                }
            }
            LINK => node.data = client.read_call(api::READLINK, [ino, 0, 0], &[]).data,
            _ => node.data = client.read_all(ino),
        }
        let bytes = if node.is_dir() { 4096 } else { node.data.len() as u64 };
        assert_eq!(attr.bytes.get(), bytes);
        let names = client.read_call(api::LISTXATTR, [ino, 0, 0], &[]).data;
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = client.read_call(api::GETXATTR, [ino, 0, 0], name).data;
            node.xattrs.insert(String::from_utf8(name.to_vec()).expect("a name of the test"), value);
        }
        nodes.insert(own(ino), node);
    }
    Model { nodes }
}

/// What differs, for people.
pub fn difference(one: &Model, other: &Model) -> String {
    for ino in one.nodes.keys().chain(other.nodes.keys()) {
        match (one.nodes.get(ino), other.nodes.get(ino)) {
            (Some(one), Some(other)) if one == other => (),
            (Some(one), Some(other)) => {
                let at = one.data.iter().zip(&other.data).position(|(one, other)| one != other);
                return format!(
                    "inode {ino}: {:?} or {:?}; bytes {} or {}, first difference {at:?}",
                    Node { data: Vec::new(), ..one.clone() },
                    Node { data: Vec::new(), ..other.clone() },
                    one.data.len(),
                    other.data.len(),
                );
            }
            (Some(_), None) => return format!("inode {ino} only in the first"),
            _ => return format!("inode {ino} only in the second"),
        }
    }
    "nothing".to_owned()
}
