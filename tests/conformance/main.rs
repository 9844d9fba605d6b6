//! One suite for every store. A store that passes may hold an election.
//!
//! `suite` says what must hold, in sentences; each module beside it brings one store, runs the suite,
//! and adds what only that store can get wrong.

#[path = "../support/mod.rs"]
mod support;

mod suite;

mod aws;
mod consul;
mod etcd;
mod file;
mod kubernetes;
mod kubernetes_faults;
mod kubernetes_standin;
mod mysql;
mod nats;
mod own;
mod postgres;
mod postgres_alone;
mod postgres_faults;
mod postgres_guards;
mod redis;
