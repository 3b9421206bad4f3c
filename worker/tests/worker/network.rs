//! Network namespaces of a test.
//!
//! ```text
//!  one:  this machine: kube-apiserver at 10.231.N.1 ══ veth ══ 10.231.N.2: the worker's network namespace
//!
//!  two:  this machine at 10.231.N.1 ══ 10.231.N.2: router at 10.231.N.5 and 10.231.N.9
//!                                                    ╚══ 10.231.N.6, 10.231.N.10: the workers' network namespaces
//! ```

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace with one uplink. Dropping it deletes the namespace and the link.
pub(crate) struct Network {
    pub(crate) namespace: String,
    /// Address of this machine on the link, where the API server listens.
    pub(crate) host: String,
    /// Address of the namespace.
    pub(crate) worker: String,
    /// Name of this machine's end of the link.
    link: Option<String>,
}

impl Network {
    /// Creates a namespace that is connected to this machine.
    pub(crate) fn make() -> Self {
        Self::link(&make_namespace()).1
    }

    /// Creates two namespaces that are connected to a third one, which is connected to this
    /// machine.
    pub(crate) fn make_two() -> (Self, [Self; 2]) {
        let (number, router) = Self::link(&make_namespace());
        router.ask("sysctl", &["-w", "net.ipv4.ip_forward=1"]);
        let host = router.host.clone();
        let range = format!("10.231.{number}.0/28");
        ip(&["route", "add", &range, "via", &router.worker]);
        let workers = [("one", 4), ("two", 8)].map(|(link, low)| {
            let namespace = make_namespace();
            let [near, far] = [low + 1, low + 2].map(|last| format!("10.231.{number}.{last}"));
            let arguments = [
                "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", &namespace,
            ];
            router.ask("ip", &arguments);
            router.ask("ip", &["address", "add", &format!("{near}/30"), "dev", link]);
            router.ask("ip", &["link", "set", link, "up"]);
            let worker = Self {
                namespace,
                host: host.clone(),
                worker: far,
                link: None,
            };
            worker.connect(&near);
            worker
        });
        (router, workers)
    }

    /// Chooses a number for a link. Tests run concurrently, so the creation of the link reserves
    /// the number.
    fn link(namespace: &str) -> (u8, Self) {
        let number = (0..250)
            .find(|number| add_link(&format!("ywk{number}"), namespace))
            .expect("a number is left");
        let network = Self {
            namespace: namespace.to_owned(),
            host: format!("10.231.{number}.1"),
            worker: format!("10.231.{number}.2"),
            link: Some(format!("ywk{number}")),
        };
        let link = format!("ywk{number}");
        ip(&["address", "add", &format!("{}/30", network.host), "dev", &link]);
        ip(&["link", "set", &link, "up"]);
        network.connect(&network.host);
        (number, network)
    }

    fn connect(&self, gateway: &str) {
        self.ask("ip", &["address", "add", &format!("{}/30", self.worker), "dev", "eth0"]);
        for device in ["lo", "eth0"] {
            self.ask("ip", &["link", "set", device, "up"]);
        }
        self.ask("ip", &["route", "add", "default", "via", gateway]);
    }

    /// Runs a program in the namespace and returns its output.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let net = format!("/run/netns/{}", self.namespace);
        let (good, output) = run_in(&net, program, arguments);
        assert!(good, "{program} {arguments:?}: {output}");
        output
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let link = self.link.iter().map(|link| ["link", "delete", link]);
        for arguments in link.chain([["netns", "delete", &self.namespace]]) {
            let _ = Command::new("ip").args(arguments).status();
        }
    }
}

/// Runs a program in a network namespace. Returns whether it succeeded, and its output.
pub(crate) fn run_in(net: &str, program: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={net}")).arg(program).args(arguments);
    let output = command.output().unwrap();
    let text = if output.status.success() {
        output.stdout
    } else {
        output.stderr
    };
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn make_namespace() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let namespace = format!("yoke-worker-{}-{number}", std::process::id());
    ip(&["netns", "add", &namespace]);
    namespace
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

/// Adds a link. Returns whether the name was free.
fn add_link(link: &str, namespace: &str) -> bool {
    let arguments = [
        "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace,
    ];
    let output = Command::new("ip").args(arguments).output().unwrap();
    let taken = String::from_utf8_lossy(&output.stderr).contains("File exists");
    assert!(output.status.success() || taken, "ip {arguments:?}: {output:?}");
    !taken
}
