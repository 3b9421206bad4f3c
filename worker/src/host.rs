//! Reads and changes the machine: files, control groups, sysctls, packet filter, GPUs.

pub(crate) mod cgroups;
pub(crate) mod etc_hosts;
pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod gpus;
pub(crate) mod iproute;
pub(crate) mod iptables;
pub(crate) mod mounts;
pub(crate) mod nftables;
pub(crate) mod resolv_conf;
pub(crate) mod sysctls;
