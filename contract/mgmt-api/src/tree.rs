//! Paths in a container's file tree, as people write them.

/// Where programs see the tree.
pub const TREE: &str = "/dc";

/// `/dc/www`, for a path that says where programs see it (`/dc/www`) or where it is in the tree (`/www`): both are the
/// same place. A directory of the tree that is itself called `dc` is `/dc/dc`. None: the path leads out of the tree, or
/// no file can have it.
pub fn in_tree(path: &str) -> Option<String> {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let is_seen = path == TREE || path.starts_with("/dc/");
    let parts: Vec<&str> = parts.skip(usize::from(is_seen)).collect();
    let is_inside = !parts.contains(&"..") && !path.contains('\0');
    is_inside.then(|| parts.iter().fold(TREE.to_owned(), |path, part| format!("{path}/{part}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_as_programs_see_it_and_path_in_the_tree_are_one_place() {
        for path in ["/dc/www/a", "/www/a", "www//a/./", "/dc//www/a/"] {
            assert_eq!(in_tree(path).as_deref(), Some("/dc/www/a"), "{path}");
        }
        for root in ["/", "", "/dc", "/dc/", "."] {
            assert_eq!(in_tree(root).as_deref(), Some("/dc"), "{root}");
        }
        assert_eq!(in_tree("/dc/dc/x").as_deref(), Some("/dc/dc/x"));
        assert_eq!(in_tree("/dcx/y").as_deref(), Some("/dc/dcx/y"));
        assert_eq!(in_tree("dc/x").as_deref(), Some("/dc/dc/x"), "not as programs see it");
    }

    #[test]
    fn path_that_leads_out_is_none() {
        assert!(in_tree("/www/../../etc").is_none() && in_tree("/dc/..").is_none() && in_tree("a\0").is_none());
    }
}
