//! OpenSSH's client in a real terminal.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::process::Command;
use yoke_test_support::eventually;

use crate::person::{Said, run};
use crate::world::World;

const LIMIT: Duration = Duration::from_secs(20);

/// A terminal of 80 columns and 24 rows with a shell. It is ended when the test ends.
pub(crate) struct Tmux {
    socket: String,
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let end = ["-S", &self.socket, "kill-server"];
        let _ = std::process::Command::new("tmux").args(end).status();
    }
}

impl Tmux {
    pub(crate) async fn start(world: &World) -> Self {
        // The previous one may still hold its socket.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tmux-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let socket = world.path(&name).to_str().unwrap().to_owned();
        let tmux = Self { socket };
        let shell = "exec env -i PATH=\"$PATH\" TERM=\"$TERM\" PS1='$ ' LC_ALL=C.UTF-8 sh";
        tmux.run(&["-f", "/dev/null", "-u", "new-session", "-d", "-x80", "-y24", shell])
            .await
            .ok();
        tmux
    }

    async fn run(&self, arguments: &[&str]) -> Said {
        run(Command::new("tmux").args(["-S", &self.socket]).args(arguments)).await
    }

    /// Connects to the server from the shell, as alice.
    pub(crate) async fn call(&self, world: &World) {
        let script = world.path("yoke");
        let command = world.alice.begin(&[], "");
        let words = command.as_std().get_args().map(|word| word.to_str().unwrap());
        let line = shlex::try_join(words).unwrap();
        std::fs::write(&script, format!("ssh {line}\n")).unwrap();
        self.shows("$").await;
        self.press(&[&format!(". {}", script.display()), "Enter"]).await;
    }

    pub(crate) async fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.run(&["resize-window", "-x", &columns, "-y", &rows]).await.ok();
    }

    /// Returns everything that was printed. Wrapped lines are joined, as the terminal copies them.
    pub(crate) async fn history(&self) -> String {
        self.run(&["capture-pane", "-p", "-J", "-S", "-"]).await.ok()
    }

    pub(crate) async fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys", "--"], keys].concat()).await.ok();
    }

    /// Waits until this text is shown, and returns the screen.
    pub(crate) async fn shows(&self, text: &str) -> String {
        let screen = async || Ok::<_, Infallible>(self.run(&["capture-pane", "-p"]).await.ok());
        eventually(&format!("{text:?} on the screen"), LIMIT, screen, |shown| {
            shown.contains(text)
        })
        .await
        .unwrap()
    }
}

pub(crate) async fn a_real_terminal_is_left_as_it_was(world: &World) {
    let tmux = Tmux::start(world).await;
    tmux.call(world).await;
    tmux.shows("You have no Clusters. Press c to create one.").await;
    tmux.press(&["c", "real", "Enter"]).await;
    tmux.shows("Cluster real created").await;
    tmux.press(&["Enter"]).await;
    tmux.shows("Kubeconfig  not there yet").await;
    tmux.resize(40, 10).await;
    tmux.shows(" j join  k kubeconfig  s sleep  Esc back").await;
    tmux.press(&["Escape"]).await;
    tmux.shows("? help  q quit").await;
    tmux.resize(80, 24).await;
    tmux.press(&["d", "real", "Enter"]).await;
    let shown = tmux.shows("You have no Clusters. Press c to create one.").await;
    assert!(shown.starts_with(" Yoke  a · laptop"), "{shown}");
    tmux.press(&["q"]).await;
    tmux.shows("closed.").await;
    // Input is echoed again, and the earlier content is restored.
    tmux.press(&["echo me again", "Enter"]).await;
    let shown = tmux.shows("\nme again\n").await;
    assert!(
        shown.contains("$ echo me again\n") && shown.starts_with("$ . "),
        "{shown}"
    );
    assert!(!shown.contains("Yoke"), "{shown}");
}
