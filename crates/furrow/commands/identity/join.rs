//! Join tokens: made beside the run, exchanged by another machine for its identity.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_identity::{Authority, JoinRefusal, JoinToken, JoiningKey, PeerRole};
use furrow_wire::{Status, describe_status, serve_enrolment};
use tokio::net::TcpListener;

use super::checks::{authority, check_is_new, check_name, role};
use crate::launch::{self, SignalledWork};
use crate::{CommandFailure, output, peers};

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Role of the process that joins: policy, env, client or observer
    role: String,
    /// Name of the process, without dots
    name: String,
    /// Run directory; its coordinator need not have been started yet
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// Minutes until the token expires
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    valid_minutes: u64,
}

#[derive(Debug, Args)]
pub(crate) struct EnrolArgs {
    /// Run directory whose coordinator identifies itself to them
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// Address to listen on, host:port, that the other machines reach
    #[arg(long)]
    listen: String,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Token that `furrow identity token` printed. Other users of this machine can read arguments
    /// of commands, but not FURROW_JOIN_TOKEN
    #[arg(env = "FURROW_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// Address of `furrow identity enrol`, host:port
    #[arg(long, value_name = "ADDRESS")]
    at: String,
    /// Folder to write the identity to, which must not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn token(args: &TokenArgs) -> Result<(), CommandFailure> {
    let role = role(&args.role)?;
    let authority = authority(&args.run)?;
    check_name(&args.run, role, &args.name)?;
    let valid = Duration::from_secs(60 * args.valid_minutes);
    let dir = Authority::dir_of_run(&args.run);
    let token = authority.make_token(&dir, role, &args.name, valid).map_err(peers::input)?;
    output::line(token.reveal());
    output::error_line(&format!(
        "stands for {role}/{} once, within {} minutes; keep it secret, and on the other machine run `furrow identity \
         join` while `furrow identity enrol` runs here",
        args.name, args.valid_minutes
    ));
    Ok(())
}

pub(super) fn enrol(args: &EnrolArgs) -> Result<(), CommandFailure> {
    let authority = authority(&args.run)?;
    let identity = peers::issue(&authority, PeerRole::Coordinator, "enrolment")?;
    let dir = Authority::dir_of_run(&args.run);
    launch::runtime()?.block_on(async {
        let listener = TcpListener::bind(&args.listen).await.map_err(|error| {
            CommandFailure::Input(vec![format!("--listen: cannot listen on {}: {error}", args.listen)])
        })?;
        output::line(format!(
            "joining machines are answered on {}; stop with Ctrl-C",
            listener.local_addr()?
        ));
        let stop = launch::stop_on_signal(SignalledWork::Enrolment)?;
        let enroller = move |secret: &[u8], public_key: &[u8]| {
            let answer = authority.enrol(&dir, secret, public_key);
            match &answer {
                Ok(_) => output::error_line("a machine joined"),
                Err(why) => output::error_line(&format!("a machine was refused: {why}")),
            }
            answer.map_err(|why| match &why {
                JoinRefusal::Token => Status::permission_denied(why.to_string()),
                JoinRefusal::Key { .. } => Status::invalid_argument(why.to_string()),
                // What is wrong with files here is no matter of a stranger.
                JoinRefusal::Identity(_) => Status::internal("the run's identity folder cannot be used"),
            })
        };
        Ok(serve_enrolment(listener, &identity, Arc::new(enroller), stop.cancelled_owned()).await?)
    })
}

pub(super) fn join(args: &JoinArgs) -> Result<(), CommandFailure> {
    let token = JoinToken::parse(&args.token).ok_or_else(|| {
        let why = "TOKEN: not a join token; copy the whole line that `furrow identity token` printed";
        CommandFailure::Input(vec![why.to_owned()])
    })?;
    check_is_new(&args.out)?;
    let key = JoiningKey::generate().map_err(peers::input)?;
    let certificate = launch::runtime()?.block_on(furrow_wire::enrol(&token, &args.at, key.public_key()));
    let certificate = certificate.map_err(|status| {
        anyhow::anyhow!("{} did not enrol this machine: {}", args.at, describe_status(&status))
    })?;
    let identity = key.into_identity(&token, certificate).map_err(peers::input)?;
    identity.write(&args.out).map_err(peers::input)?;
    output::line(format!("{} is in {}", identity.peer(), args.out.display()));
    output::line("name the folder with --identity or FURROW_IDENTITY; keep it secret");
    Ok(())
}
