//! Read-only files for `scp` and `sftp`: one directory with the kubeconfig of each Cluster,
//! `NAME.kubeconfig`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use russh_sftp::protocol::{
    Attrs, Data, File, FileAttributes, FileMode, Handle, Name, Open as OpenFile, OpenFlags, Packet, Read, StatusCode,
    Version,
};
use russh_sftp::server::StatusReply;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::Error;
use crate::audit::{Audit, Protocol};
use crate::commands::parse::parse_name;
use crate::identity::key_registry::Identity;
use crate::shared::Shared;
use crate::ssh::channel_output::ChannelOutput;
use crate::tenant::TenantHost;

const SUFFIX: &str = ".kubeconfig";
const ROOT: &str = "/";
/// Maximum number of open files and directories.
const HANDLES_MAX: usize = 16;
/// Maximum number of bytes in one read.
const READ_MAX: usize = 64 * 1024;
/// Maximum length of a request in bytes, which every server must accept
/// (draft-ietf-secsh-filexfer-02, 3).
const REQUEST_MAX: u32 = 34_000;

/// One client's SFTP session.
pub struct Files {
    shared: Arc<Shared>,
    identity: Identity,
    source: IpAddr,
    host: TenantHost,
    handles: BTreeMap<u64, Open>,
    next: u64,
}

/// The object behind a handle.
enum Open {
    File(Vec<u8>),
    /// Entries that are not listed yet.
    Folder(Vec<File>),
}

/// The object at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Folder,
    /// The kubeconfig of the Cluster of this name.
    Kubeconfig(String),
}

impl Files {
    /// Creates a session for the Tenant of `host`.
    pub fn new(shared: Arc<Shared>, identity: Identity, source: IpAddr, host: TenantHost) -> Self {
        Self {
            shared,
            identity,
            source,
            host,
            handles: BTreeMap::new(),
            next: 0,
        }
    }

    /// Answers requests until the client sends no more, sends an invalid request, or stops reading.
    /// The library's own loop is not used, because its task cannot be cancelled.
    pub async fn serve(mut self, mut requests: impl AsyncRead + Unpin, output: ChannelOutput) {
        while let Some(request) = next_request(&mut requests).await {
            let answer = self.answer(request).await;
            let sent = match Bytes::try_from(answer) {
                Ok(bytes) => output.send(bytes).await,
                Err(_) => false,
            };
            if !sent {
                break;
            }
        }
        output.end(0).await;
    }

    async fn answer(&mut self, request: Packet) -> Packet {
        let id = request.get_request_id();
        let answer: Result<Packet, StatusReply> = match request {
            // All clients support version 3.
            Packet::Init(_) => Ok(Version::new().into()),
            Packet::RealPath(it) => {
                let files = vec![File::dummy(to_absolute(&it.path))];
                Ok(Name { id, files }.into())
            }
            Packet::Stat(it) => self.stat(id, &it.path).await,
            Packet::Lstat(it) => self.stat(id, &it.path).await,
            Packet::Fstat(it) => self.fstat(id, &it.handle),
            Packet::Open(it) => self.open(it).await,
            Packet::Read(it) => self.read(&it),
            Packet::OpenDir(it) => self.opendir(id, &it.path).await,
            Packet::ReadDir(it) => self.readdir(id, &it.handle),
            Packet::Close(it) => self.close(id, &it.handle),
            _ => Err(read_only()),
        };
        answer.unwrap_or_else(|reply| {
            let message = reply.error_message.unwrap_or_else(|| reply.status_code.to_string());
            Packet::status(id, reply.status_code, &message, "en")
        })
    }

    async fn fetch(&self, name: &str, command: &'static str) -> Result<Vec<u8>, StatusReply> {
        let text = self.audited(command, name, self.host.kubeconfig(name)).await?;
        Ok(text.into_bytes())
    }

    async fn list(&self) -> Result<Vec<File>, StatusReply> {
        let clusters = self.audited("sftp ls", ROOT, self.host.list()).await?;
        let with_kubeconfig = clusters.into_iter().filter(|cluster| {
            let status = cluster.status.as_ref();
            status.is_some_and(|status| status.kubeconfig_ref.is_some())
        });
        let names = with_kubeconfig.filter_map(|cluster| cluster.metadata.name);
        Ok(names
            .map(|name| File::new(format!("{name}{SUFFIX}"), file_attributes(None)))
            .collect())
    }

    /// Checks that the client may execute a command now, executes it, and writes it to the audit
    /// log.
    async fn audited<T>(
        &self,
        command: &'static str,
        what: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StatusReply> {
        let permitted = self.shared.check_command(&self.identity);
        if let Err(error @ Error::RateLimited) = &permitted {
            self.shared.metrics.count_command(command, error.as_str());
            return Err(to_reply(error));
        }
        let audit = Audit::begin(&self.identity, self.source, Protocol::Ssh, &format!("{command} {what}"));
        let result = match permitted {
            Ok(()) => work.await,
            Err(error) => Err(error),
        };
        let word = result.as_ref().map_or_else(Error::as_str, |_| "ok");
        self.shared.metrics.count_command(command, word);
        let detail = result.as_ref().err().map(Error::with_causes);
        audit.end(word, detail.as_deref());
        result.map_err(|error| to_reply(&error))
    }

    fn open_handle(&mut self, id: u32, open: Open) -> Result<Packet, StatusReply> {
        if self.handles.len() >= HANDLES_MAX {
            return Err(StatusCode::Failure.with_message("too many files are open"));
        }
        self.next += 1;
        self.handles.insert(self.next, open);
        let handle = self.next.to_string();
        Ok(Handle { id, handle }.into())
    }

    fn opened(&mut self, handle: &str) -> Result<&mut Open, StatusReply> {
        let key = handle.parse::<u64>().ok();
        let open = key.and_then(|key| self.handles.get_mut(&key));
        open.ok_or_else(|| StatusCode::Failure.with_message("this handle is not open"))
    }

    async fn stat(&self, id: u32, path: &str) -> Result<Packet, StatusReply> {
        let attrs = match to_target(path)? {
            Target::Folder => folder_attributes(),
            Target::Kubeconfig(name) => file_attributes(Some(self.fetch(&name, "sftp stat").await?.len())),
        };
        Ok(Attrs { id, attrs }.into())
    }

    fn fstat(&mut self, id: u32, handle: &str) -> Result<Packet, StatusReply> {
        let attrs = match self.opened(handle)? {
            Open::File(bytes) => file_attributes(Some(bytes.len())),
            Open::Folder(_) => folder_attributes(),
        };
        Ok(Attrs { id, attrs }.into())
    }

    async fn open(&mut self, request: OpenFile) -> Result<Packet, StatusReply> {
        if request.pflags.bits() != OpenFlags::READ.bits() {
            return Err(read_only());
        }
        match to_target(&request.filename)? {
            Target::Folder => Err(StatusCode::Failure.with_message("this is a directory")),
            Target::Kubeconfig(name) => {
                let bytes = self.fetch(&name, "sftp get").await?;
                self.open_handle(request.id, Open::File(bytes))
            }
        }
    }

    fn read(&mut self, request: &Read) -> Result<Packet, StatusReply> {
        let Open::File(bytes) = self.opened(&request.handle)? else {
            return Err(StatusCode::Failure.with_message("this is a directory"));
        };
        let rest = usize::try_from(request.offset)
            .ok()
            .and_then(|offset| bytes.get(offset..));
        let rest = rest.filter(|rest| !rest.is_empty()).ok_or(StatusCode::Eof)?;
        let length = rest.len().min(request.len as usize).min(READ_MAX);
        let (id, data) = (request.id, rest[..length].to_vec());
        Ok(Data { id, data }.into())
    }

    async fn opendir(&mut self, id: u32, path: &str) -> Result<Packet, StatusReply> {
        match to_target(path)? {
            Target::Folder => {
                let files = self.list().await?;
                self.open_handle(id, Open::Folder(files))
            }
            Target::Kubeconfig(_) => Err(StatusCode::Failure.with_message("this is not a directory")),
        }
    }

    fn readdir(&mut self, id: u32, handle: &str) -> Result<Packet, StatusReply> {
        let Open::Folder(files) = self.opened(handle)? else {
            return Err(StatusCode::Failure.with_message("this is not a directory"));
        };
        match std::mem::take(files) {
            files if files.is_empty() => Err(StatusCode::Eof.into()),
            files => Ok(Name { id, files }.into()),
        }
    }

    fn close(&mut self, id: u32, handle: &str) -> Result<Packet, StatusReply> {
        self.opened(handle)?;
        handle.parse::<u64>().ok().map(|key| self.handles.remove(&key));
        Ok(Packet::status(id, StatusCode::Ok, "closed", "en"))
    }
}

/// Reads the next request; `None` at the end of the input or for an invalid request.
async fn next_request(requests: &mut (impl AsyncRead + Unpin)) -> Option<Packet> {
    let length = requests.read_u32().await.ok()?;
    if length > REQUEST_MAX {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    requests.read_exact(&mut bytes).await.ok()?;
    Packet::try_from(&mut Bytes::from(bytes)).ok()
}

fn read_only() -> StatusReply {
    StatusCode::PermissionDenied.with_message("files are read-only here")
}

/// Returns the normalized absolute path.
fn to_absolute(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("{ROOT}{}", parts.join("/"))
}

fn to_target(path: &str) -> Result<Target, StatusReply> {
    let path = to_absolute(path);
    if path == ROOT {
        return Ok(Target::Folder);
    }
    let name = path.strip_prefix(ROOT).and_then(|name| name.strip_suffix(SUFFIX));
    let name = name.and_then(|name| parse_name(name).ok());
    name.map(Target::Kubeconfig)
        .ok_or_else(|| StatusCode::NoSuchFile.with_message(format!("there are only files NAME{SUFFIX} here")))
}

fn to_reply(error: &Error) -> StatusReply {
    let code = match error.as_str() {
        "not_found" | "not_ready" => StatusCode::NoSuchFile,
        "forbidden" | "key_withdrawn" => StatusCode::PermissionDenied,
        _ => StatusCode::Failure,
    };
    code.with_message(error.to_string())
}

/// Returns the attributes of a file that only its owner can read; clients use the mode for the
/// copy.
fn file_attributes(size: Option<usize>) -> FileAttributes {
    FileAttributes {
        size: size.map(|size| size as u64),
        permissions: Some(FileMode::REG.bits() | 0o600),
        ..FileAttributes::default()
    }
}

fn folder_attributes() -> FileAttributes {
    FileAttributes {
        permissions: Some(FileMode::DIR.bits() | 0o500),
        ..FileAttributes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_folder_of_kubeconfigs() {
        let file = |name: &str| Some(Target::Kubeconfig(name.to_owned()));
        for (path, expected) in [
            ("", Some(Target::Folder)),
            (".", Some(Target::Folder)),
            ("/", Some(Target::Folder)),
            ("../..", Some(Target::Folder)),
            ("demo.kubeconfig", file("demo")),
            ("/demo.kubeconfig", file("demo")),
            ("./a/../demo.kubeconfig", file("demo")),
            ("demo", None),
            ("a/demo.kubeconfig", None),
            ("../../etc/passwd", None),
            (".kubeconfig", None),
            ("a%2fb.kubeconfig", None),
            ("A.kubeconfig", None),
        ] {
            assert_eq!(to_target(path).ok(), expected, "{path:?}");
        }
        assert_eq!(to_absolute("a/./b//../c"), "/a/c");
    }
}
