//! What is done on kernels that lack a feature, on this one with the feature switched off.

use std::time::Duration;

use end_to_end::{Cluster, eventually};

const ALL: &str = "passrights,pid_max_ns,resend,passpidfd,expire";

#[test]
fn container_works_on_a_kernel_without_what_newer_ones_have() {
    let cluster = Cluster::up_without(2, ALL);
    cluster.container("shop", 2, &["--fs-node", "n2", "--disk-node", "n2"]);

    // PIDs stay in the range of their node though the kernel's limit is another.
    let range: u32 = cluster.sh("shop", "n1", "cat /proc/sys/kernel/pid_max").trim().parse().expect("a number");
    assert_ne!(range, 131_072, "the feature was not switched off");
    let script = "for i in $(seq 2000); do /bin/true; done; sh -c 'echo $$'";
    let pid: u32 = cluster.sh("shop", "n1", script).trim().parse().expect("a number");
    assert!((65_536..131_072).contains(&pid), "{pid}");

    // What one node changes the other sees, names too, though the kernel cannot be told to ask again.
    for round in 0..10 {
        cluster.sh("shop", "n1", &format!("mkdir -p /dc/d && echo {round} > /dc/d/f && mv /dc/d/f /dc/d/g{round}"));
        assert_eq!(cluster.sh("shop", "n2", &format!("cat /dc/d/g{round}; rm /dc/d/g{round}")), format!("{round}\n"));
        assert_eq!(cluster.sh("shop", "n1", "ls -A /dc/d"), "");
    }

    // Programs go on after the death of a gate; what it was doing fails, and nobody waits for ever.
    let writer = "cd /dc; for i in $(seq 200); do echo $i > w 2>/dev/null; sleep 0.01; done; echo done";
    let writing = cluster.spawn(&["run", "shop", "--node", "n1", "--", "sh", "-c", writer]);
    for _ in 0..3 {
        let gate = eventually("a gate runs", Duration::from_secs(20), || cluster.server_pid("shop", "n1", "gate"));
        cluster.kill("n1", gate);
        eventually("another gate runs", Duration::from_secs(20), || {
            cluster.server_pid("shop", "n1", "gate").filter(|next| *next != gate)
        });
    }
    let done = writing.wait_with_output().expect("dvs ends");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "done\n", "{done:?}");
    assert_eq!(cluster.sh("shop", "n2", "cat /dc/w"), cluster.sh("shop", "n1", "cat /dc/w"));
}
