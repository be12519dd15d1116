//! `furrow identity`: identities of a run for processes of other machines.

mod checks;
mod join;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use furrow_identity::{Authority, RevokedPeer};

use checks::{authority, check_is_new, check_name, role};
use join::{EnrolArgs, JoinArgs, TokenArgs};

use crate::{CommandFailure, output, peers};

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// Issue an identity to one process of another machine and write it to a folder, to be copied
    /// there and named with --identity or FURROW_IDENTITY
    Issue(IssueArgs),
    /// Make a join token, with which another machine gets its identity from `furrow identity
    /// enrol`, once
    Token(TokenArgs),
    /// Answer machines that join with a token, until stopped
    Enrol(EnrolArgs),
    /// Join a run with a token: write an identity for this machine to a folder. The key is made
    /// here and does not leave this machine
    Join(JoinArgs),
    /// Revoke all identities of a role and name for the rest of the run: a running coordinator
    /// refuses their calls within two seconds, takes their leases away, and tells policy workers
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// Role of the process: policy, env, client (publishes, reports discards, drains) or observer
    /// (only reads)
    role: String,
    /// Name of the process, without dots. A worker registers under it and a random tail, another
    /// one at each start
    name: String,
    /// Run directory; its coordinator need not have been started yet
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// Folder to write to, which must not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// Role of the process: policy, env, client or observer
    role: String,
    /// Name that the identity was issued to
    name: String,
    /// Run directory whose identities it is one of
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
}

pub(crate) fn run(command: &IdentityCommand) -> Result<(), CommandFailure> {
    match command {
        IdentityCommand::Issue(args) => issue(args),
        IdentityCommand::Token(args) => join::token(args),
        IdentityCommand::Enrol(args) => join::enrol(args),
        IdentityCommand::Join(args) => join::join(args),
        IdentityCommand::Revoke(args) => revoke(args),
    }
}

fn revoke(args: &RevokeArgs) -> Result<(), CommandFailure> {
    let role = role(&args.role)?;
    let dir = Authority::dir_of_run(&args.run);
    Authority::check_is_in(&dir).map_err(peers::input)?;
    let text = format!("{role}/{}", args.name);
    let peer = RevokedPeer::parse(&text).ok_or_else(|| {
        CommandFailure::Input(vec![format!("{:?} is no name that an identity is issued to", args.name)])
    })?;
    let outcome = match Authority::revoke(&dir, peer).map_err(peers::input)? {
        true => "is revoked",
        false => "was revoked before",
    };
    output::line(format!("{text} {outcome}; a new identity needs another name"));
    Ok(())
}

fn issue(args: &IssueArgs) -> Result<(), CommandFailure> {
    let IssueArgs { run, out, .. } = args;
    let role = role(&args.role)?;
    check_is_new(out)?;
    let authority = authority(run)?;
    check_name(run, role, &args.name)?;
    let issued = peers::issue(&authority, role, &args.name)?;
    issued.write(out).map_err(peers::input)?;
    output::line(format!("{} is in {}", issued.peer(), out.display()));
    output::line(
        "copy the folder to the other machine, keep it secret, and name it there with --identity or FURROW_IDENTITY",
    );
    Ok(())
}
