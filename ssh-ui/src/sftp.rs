//! Files for `scp` and `sftp`: a folder with the kubeconfig of each Cluster, `NAME.kubeconfig`, to be read and no more.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use russh_sftp::protocol::{
    Attrs, Data, File, FileAttributes, FileMode, Handle, Name, OpenFlags, Status, StatusCode, Version,
};
use russh_sftp::server::StatusReply;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Error;
use crate::audit::Audit;
use crate::command::parse_name;
use crate::directory::Identity;
use crate::server::Shared;
use crate::tenant::TenantHost;

const SUFFIX: &str = ".kubeconfig";
const ROOT: &str = "/";
/// The one version that all clients speak.
const VERSION: u32 = 3;
/// Files and listings that may be open at a time.
const HANDLES_MAX: usize = 16;
/// What is read at once at most.
const READ_MAX: usize = 64 * 1024;

/// One client's view of the files.
pub struct Files {
    shared: Arc<Shared>,
    identity: Identity,
    source: IpAddr,
    host: TenantHost,
    handles: BTreeMap<u64, Open>,
    next: u64,
}

/// What a handle stands for.
enum Open {
    File(Vec<u8>),
    /// What is yet to be listed.
    Folder(Vec<File>),
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Folder,
    /// The kubeconfig of the Cluster of this name.
    Kubeconfig(String),
}

impl Files {
    /// The files of the Tenant that `host` is the view of.
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

    /// Answers a client until it has no more to ask for.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        russh_sftp::server::run(stream, self).await;
    }

    async fn fetch(&self, name: &str, command: &'static str) -> Result<Vec<u8>, StatusReply> {
        let text = self.note(command, name, async {
            self.shared.permit(&self.identity)?;
            self.host.kubeconfig(name).await
        });
        text.await.map(String::into_bytes)
    }

    async fn list(&self) -> Result<Vec<File>, StatusReply> {
        let clusters = self.note("sftp ls", ROOT, async {
            self.shared.permit(&self.identity)?;
            self.host.list().await
        });
        let with_kubeconfig = clusters.await?.into_iter().filter(|cluster| {
            let status = cluster.status.as_ref();
            status.is_some_and(|status| status.kubeconfig_ref.is_some())
        });
        let names = with_kubeconfig.filter_map(|cluster| cluster.metadata.name);
        Ok(names
            .map(|name| File::new(format!("{name}{SUFFIX}"), file_attributes(None)))
            .collect())
    }

    /// Does something and writes it into the log.
    async fn note<T>(
        &self,
        command: &'static str,
        what: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StatusReply> {
        let audit = Audit::begin(&self.identity, self.source, &format!("{command} {what}"));
        let result = work.await;
        let word = result.as_ref().map_or_else(Error::as_str, |_| "ok");
        self.shared.metrics.count_command(command, word);
        let detail = result.as_ref().err().map(Error::with_causes);
        audit.end(word, detail.as_deref());
        result.map_err(|error| to_reply(&error))
    }

    fn keep(&mut self, id: u32, open: Open) -> Result<Handle, StatusReply> {
        if self.handles.len() >= HANDLES_MAX {
            return Err(StatusCode::Failure.with_message("too many files are open"));
        }
        self.next += 1;
        self.handles.insert(self.next, open);
        Ok(Handle {
            id,
            handle: self.next.to_string(),
        })
    }

    fn opened(&mut self, handle: &str) -> Result<&mut Open, StatusReply> {
        let key = handle.parse::<u64>().ok();
        let open = key.and_then(|key| self.handles.get_mut(&key));
        open.ok_or_else(|| StatusCode::Failure.with_message("this is not open"))
    }

    async fn attributes(&self, path: &str) -> Result<FileAttributes, StatusReply> {
        match to_place(path)? {
            Place::Folder => Ok(folder_attributes()),
            Place::Kubeconfig(name) => Ok(file_attributes(Some(self.fetch(&name, "sftp stat").await?.len()))),
        }
    }
}

impl russh_sftp::server::Handler for Files {
    type Error = StatusReply;

    fn unimplemented(&self) -> Self::Error {
        StatusCode::PermissionDenied.with_message("files can only be read here")
    }

    async fn init(&mut self, _version: u32, _extensions: HashMap<String, String>) -> Result<Version, Self::Error> {
        Ok(Version {
            version: VERSION,
            extensions: HashMap::new(),
        })
    }

    async fn realpath(&mut self, id: u32, path: String) -> Result<Name, Self::Error> {
        Ok(Name {
            id,
            files: vec![File::dummy(to_absolute(&path))],
        })
    }

    async fn stat(&mut self, id: u32, path: String) -> Result<Attrs, Self::Error> {
        let attrs = self.attributes(&path).await?;
        Ok(Attrs { id, attrs })
    }

    async fn lstat(&mut self, id: u32, path: String) -> Result<Attrs, Self::Error> {
        self.stat(id, path).await
    }

    async fn fstat(&mut self, id: u32, handle: String) -> Result<Attrs, Self::Error> {
        let attrs = match self.opened(&handle)? {
            Open::File(bytes) => file_attributes(Some(bytes.len())),
            Open::Folder(_) => folder_attributes(),
        };
        Ok(Attrs { id, attrs })
    }

    async fn open(
        &mut self,
        id: u32,
        path: String,
        flags: OpenFlags,
        _attributes: FileAttributes,
    ) -> Result<Handle, Self::Error> {
        if flags.bits() != OpenFlags::READ.bits() {
            return Err(russh_sftp::server::Handler::unimplemented(self));
        }
        match to_place(&path)? {
            Place::Folder => Err(StatusCode::Failure.with_message("this is a folder")),
            Place::Kubeconfig(name) => {
                let bytes = self.fetch(&name, "sftp get").await?;
                self.keep(id, Open::File(bytes))
            }
        }
    }

    async fn read(&mut self, id: u32, handle: String, offset: u64, length: u32) -> Result<Data, Self::Error> {
        let Open::File(bytes) = self.opened(&handle)? else {
            return Err(StatusCode::Failure.with_message("this is a folder"));
        };
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let rest = rest.filter(|rest| !rest.is_empty()).ok_or(StatusCode::Eof)?;
        let length = rest.len().min(length as usize).min(READ_MAX);
        Ok(Data {
            id,
            data: rest[..length].to_vec(),
        })
    }

    async fn opendir(&mut self, id: u32, path: String) -> Result<Handle, Self::Error> {
        match to_place(&path)? {
            Place::Folder => {
                let files = self.list().await?;
                self.keep(id, Open::Folder(files))
            }
            Place::Kubeconfig(_) => Err(StatusCode::Failure.with_message("this is no folder")),
        }
    }

    async fn readdir(&mut self, id: u32, handle: String) -> Result<Name, Self::Error> {
        let Open::Folder(files) = self.opened(&handle)? else {
            return Err(StatusCode::Failure.with_message("this is no folder"));
        };
        match std::mem::take(files) {
            files if files.is_empty() => Err(StatusCode::Eof.into()),
            files => Ok(Name { id, files }),
        }
    }

    async fn close(&mut self, id: u32, handle: String) -> Result<Status, Self::Error> {
        self.opened(&handle)?;
        handle.parse::<u64>().ok().map(|key| self.handles.remove(&key));
        Ok(Status {
            id,
            status_code: StatusCode::Ok,
            error_message: "closed".into(),
            language_tag: "en".into(),
        })
    }
}

/// The path from the root, without what goes around.
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

fn to_place(path: &str) -> Result<Place, StatusReply> {
    let path = to_absolute(path);
    if path == ROOT {
        return Ok(Place::Folder);
    }
    let name = path.strip_prefix(ROOT).and_then(|name| name.strip_suffix(SUFFIX));
    let name = name.and_then(|name| parse_name(name).ok());
    name.map(Place::Kubeconfig)
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

/// Of a file that its owner alone may read, which is what the copy gets too.
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
        let file = |name: &str| Some(Place::Kubeconfig(name.to_owned()));
        for (path, expected) in [
            ("", Some(Place::Folder)),
            (".", Some(Place::Folder)),
            ("/", Some(Place::Folder)),
            ("../..", Some(Place::Folder)),
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
            assert_eq!(to_place(path).ok(), expected, "{path:?}");
        }
        assert_eq!(to_absolute("a/./b//../c"), "/a/c");
    }
}
