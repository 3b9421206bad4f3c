//! Clients that send much, read little, or come in numbers.

use std::time::Duration;

use russh::client;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use yoke_ssh_ui::identity::key_registry::KeyRegistry;

use crate::other::Other;
use crate::person::Person;
use crate::window::{Trusting, log_in};
use crate::world::{LIMITS, World};

/// The server's first line.
const GREETING: &str = "SSH-2.0-yoke\r\n";
/// An SFTP request that negotiates version 3.
const INIT: [u8; 9] = [0, 0, 0, 5, 1, 0, 0, 0, 3];

pub(crate) async fn clients_that_send_ahead_are_served(world: &World) {
    let variables: Vec<_> = (0..20).map(|number| format!("V{number}=x")).collect();
    let variables = format!("SetEnv={}", variables.join(" "));
    let options = ["-o", &variables];
    let said = world.alice.ssh_with(&options, "whoami").await;
    assert!(said.ok().starts_with("Tenant: a\n"));
    let terminal = ["-tt", "-o", &variables];
    let said = world.alice.ssh_with(&terminal, "whoami").await;
    assert!(said.ok().starts_with("Tenant: a\r\n"));
    let listing = format!("{}exit\n", "pwd\n".repeat(50));
    let said = world.alice.sftp_with(&options, world.folder(), &listing).await.ok();
    assert_eq!(said.matches("Remote working directory: /\n").count(), 50, "{said}");
}

pub(crate) async fn key_exchanges_that_cost_much_are_refused(world: &World) {
    for costly in [
        "diffie-hellman-group18-sha512",
        "diffie-hellman-group14-sha256",
        "diffie-hellman-group-exchange-sha256",
    ] {
        let option = format!("KexAlgorithms={costly}");
        let refused = world.alice.ssh_with(&["-o", &option], "whoami").await.failed(255);
        assert!(refused.contains("no matching key exchange method found"), "{refused}");
    }
    let options = ["-vvv", "-o", "KexAlgorithms=curve25519-sha256"];
    let served = world.alice.ssh_with(&options, "whoami").await;
    assert_eq!(served.code, 0, "{served:?}");
    assert!(served.err.contains("will use strict KEX ordering"), "{served:?}");
    assert!(served.err.contains("server-sig-algs"), "{served:?}");
}

pub(crate) async fn one_connection_serves_many_commands(world: &World) {
    let control = world.path("many");
    let control = control.to_str().unwrap();
    world.alice.ssh_with(&master(control), "whoami").await.ok();
    for number in 0..20 {
        let said = world.alice.ssh_with(&["-S", control], "whoami").await;
        assert_eq!((said.code, said.err.as_str()), (0, ""), "command {number}: {said:?}");
    }
    for number in 0..10 {
        let through = format!("ControlPath={control}");
        let said = world.alice.sftp_with(&["-o", &through], world.folder(), "pwd\n").await;
        assert_eq!((said.code, said.err.as_str()), (0, ""), "transfer {number}: {said:?}");
    }
    world.alice.ssh_with(&["-S", control, "-O", "exit"], "").await;
}

pub(crate) async fn unread_output_is_dropped(world: &World) {
    let session = connect_without_window(world, &world.alice).await;
    // A transfer ends when its channel is closed.
    for round in 0..20 {
        let channel = session.channel_open_session().await;
        let channel = channel.unwrap_or_else(|error| panic!("round {round}: {error}"));
        channel.request_subsystem(true, "sftp").await.unwrap();
        channel.data_bytes(INIT.repeat(10)).await.unwrap();
        channel.close().await.unwrap();
    }
    world.until_metric("running_commands", 0).await;
    // A command ends when its answer is not read in time; other commands wait for a free channel.
    for round in 0..8 {
        let channel = session.channel_open_session().await;
        let channel = channel.unwrap_or_else(|error| panic!("round {round}: {error}"));
        channel.exec(true, "help").await.unwrap();
    }
    world.until_metric("running_commands", 8).await;
    assert!(session.channel_open_session().await.is_err(), "the places are taken");
    world.until_metric("running_commands", 0).await;
    let channel = session.channel_open_session().await.unwrap();
    channel.request_subsystem(true, "sftp").await.unwrap();
    world.until_metric("running_commands", 1).await;
    // More requests than the buffer of a stalled transfer holds.
    for _ in 0..40 {
        channel.data_bytes(INIT.repeat(500)).await.unwrap();
    }
    world.until_metric("running_commands", 0).await;
    session.channel_open_session().await.unwrap();
    let _ = session.disconnect(russh::Disconnect::ByApplication, "", "").await;
}

pub(crate) async fn newcomers_take_no_more_than_their_share(world: &World) {
    let mut others = Vec::new();
    for _ in 0..LIMITS.source_newcomers {
        let mut stream = knock(world, "127.0.0.2").await;
        assert_eq!(first_line(&mut stream).await, GREETING);
        others.push(stream);
    }
    let mut refused = knock(world, "127.0.0.2").await;
    let line = first_line(&mut refused).await;
    assert!(
        line.contains("Too many connections are open from your address"),
        "{line}"
    );
    world.alice.ssh("whoami").await.ok();
    drop(others);
    world
        .until(
            "the greeting for a newcomer",
            async || first_line(&mut knock(world, "127.0.0.2").await).await,
            |line| line == GREETING,
        )
        .await;
}

pub(crate) async fn a_tenant_takes_no_more_than_its_share(world: &World) {
    let controls: Vec<_> = (0..LIMITS.tenant_connections)
        .map(|number| world.path(&format!("share{number}")))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    world.until_metric("connections", 0).await;
    for control in &controls {
        world.alice.ssh_with(&master(control), "whoami").await.ok();
    }
    let refused = world.alice.ssh("whoami").await.failed(255);
    assert!(
        refused.contains("Too many connections of your Tenant are open"),
        "{refused}"
    );
    world.bob.ssh("whoami").await.ok();
    for control in &controls {
        world.alice.ssh_with(&["-S", control, "-O", "exit"], "").await;
    }
    world
        .until(
            "a free slot",
            async || world.alice.ssh("whoami").await.code,
            |code| *code == 0,
        )
        .await;
}

pub(crate) async fn clients_wait_until_all_tenants_are_known(world: &World) {
    let (keys, known) = watch::channel(KeyRegistry::default());
    let other = Other::start(world, world.server.clone(), known, LIMITS, Duration::from_secs(60)).await;
    let mut stream = TcpStream::connect(("127.0.0.1", other.port)).await.unwrap();
    // Silence cannot be proved: this check may pass by mistake, but never fails by mistake.
    let early = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
    assert!(early.is_err(), "{early:?}");
    keys.send_replace(KeyRegistry::default());
    assert_eq!(first_line(&mut stream).await, GREETING);
    drop(stream);
    other.end().await;
}

fn master(control: &str) -> [&str; 6] {
    ["-o", "ControlMaster=yes", "-o", "ControlPersist=60", "-S", control]
}

async fn knock(world: &World, source: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    let server = format!("127.0.0.1:{}", world.port());
    socket.connect(server.parse().unwrap()).await.unwrap()
}

async fn first_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let byte = tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await;
        line.push(byte.expect("the server says something").unwrap());
    }
    String::from_utf8(line).unwrap()
}

/// Connects as a client that never reads, which OpenSSH's client cannot do.
async fn connect_without_window(world: &World, person: &Person) -> client::Handle<Trusting> {
    let config = client::Config {
        window_size: 0,
        ..client::Config::default()
    };
    log_in(world.port(), person, config).await
}
