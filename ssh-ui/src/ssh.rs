//! The SSH protocol: listener, authentication, channels and SFTP. Commands and the full-screen
//! interface are in other folders.

pub mod banner;
pub mod channel_output;
pub mod connection;
pub mod deadline_stream;
pub mod host_key;
pub mod listener;
pub mod server;
pub mod sftp;
