//! `coorp keys`: creates the team's keys, brings them to the robots, revokes and renews them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coorp_node::keys::{self, OPERATOR};
use coorp_node::status::Status;
use coorp_node::watch::Watch;
use coorp_team::Team;

use super::load;
use crate::failure::Failure;
use crate::output;

/// Time limit for the robots to take a new list.
const TAKE_MAX: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Options of `coorp keys`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The team file.
#[derive(Debug, clap::Args)]
struct TeamFile {
    /// The team file (TOML); it names the folder of the keys
    #[arg(default_value = "team.toml", value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create the team's keys: one authority, a certificate for each robot, and one for the operator
    Init {
        #[command(flatten)]
        team: TeamFile,
    },
    /// Put what a robot needs into one file, NAME.bundle, to copy to it
    Bundle {
        /// The name of a robot, or @operator for another machine that watches the team
        name: String,
        #[command(flatten)]
        team: TeamFile,
    },
    /// Make the files that a browser needs to open the page of 'coorp watch --web' from another machine
    Browser {
        #[command(flatten)]
        team: TeamFile,
    },
    /// Revoke a robot's keys: sign a list that the robots pass on to each other
    Revoke {
        /// The name of a robot, or @operator
        name: String,
        #[command(flatten)]
        team: TeamFile,
    },
    /// Create a new authority and new keys for all; the old ones stay valid until --finish
    Renew {
        #[command(flatten)]
        team: TeamFile,
        /// End the renewal: the old authority and its keys are no longer valid
        #[arg(long)]
        finish: bool,
    },
    /// On the robot: install the keys from its bundle
    Install {
        /// The file made by 'coorp keys bundle'
        bundle: PathBuf,
        #[command(flatten)]
        team: TeamFile,
    },
}

/// Runs `coorp keys`.
///
/// # Errors
/// Keys already exist, are missing or do not match, or files cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let text = match &args.command {
        Command::Init { team } => init(&team.file)?,
        Command::Bundle { name, team } => bundle(name, &team.file)?,
        Command::Browser { team } => browser(&team.file)?,
        Command::Install { bundle, team } => install(bundle, &team.file)?,
        Command::Renew { team, finish: true } => finish(&team.file)?,
        Command::Renew { team, finish: false } => renew(&team.file)?,
        Command::Revoke { name, team } => revoke(name, &team.file)?,
    };
    output::print(&text)
}

fn init(file: &Path) -> Result<String, Failure> {
    let team = load(file)?;
    let made = keys::init(&team)?;
    let folder = team.live.keys.display();
    let (mut text, mut robots) = (String::new(), Vec::new());
    if made.authority {
        text += &format!("{folder}/ca.key: the team's authority. Anyone with it can join: keep it off the robots.\n");
    }
    for name in &made.certificates {
        if name == OPERATOR {
            text += &format!("{folder}/operator.key: for 'coorp watch', and anyone who may see the team's state.\n");
        } else {
            robots.push(name.as_str());
        }
    }
    if !robots.is_empty() {
        text += &format!("{folder}/robots: keys of {}.\n", robots.join(", "));
        text += "'coorp keys bundle NAME' packs a robot's keys into one file; 'coorp keys install' unpacks it there.\n";
    }
    Ok(text)
}

fn bundle(name: &str, file: &Path) -> Result<String, Failure> {
    let made = keys::bundle(&load(file)?, name, Path::new(""))?;
    let made = made.display();
    Ok(format!(
        "{made}: everything that {name} needs, its private key included. Copy it there with its mode (scp -p), run \
         'coorp keys install {made}' beside the team file, and delete it on both machines.\n"
    ))
}

fn browser(file: &Path) -> Result<String, Failure> {
    let made = keys::page::browser(&load(file)?, Path::new(""))?;
    let (identity, authority) = (made.identity.display(), made.authority.display());
    Ok(format!(
        "{identity}: the operator's key and certificate. Import it where the page is to be opened, with the password \
         {}, and delete the file on both machines. Anyone with both may watch the team.\n\
         {authority}: import it there as an authority for web sites. It vouches for addresses and names below .local \
         alone. Never go on past a browser's warning: a false page could then read the true one.\n",
        made.password
    ))
}

fn install(bundle: &Path, file: &Path) -> Result<String, Failure> {
    let team = load(file)?;
    let name = keys::install(&team, bundle)?;
    let (folder, bundle) = (team.live.keys.display(), bundle.display());
    Ok(format!(
        "{folder} now has the keys of {name}. Delete {bundle}; a running robot uses them after a restart.\n"
    ))
}

fn revoke(name: &str, file: &Path) -> Result<String, Failure> {
    let team = load(file)?;
    let list = keys::revoke(&team, name)?;
    let folder = team.live.keys.display();
    let mut text = format!("The keys of {name} are revoked: list {list}, in {folder}/revoked.crl.\n");
    let (_, here) = hand_out(&team, Some(name), list)?;
    if let Some(newer) = here.iter().find(|status| status.revoked.list > list) {
        return Err(Failure::Found(format!(
            "failed: {} already has list {}, and {folder} is an older copy of the team's keys: repeat this with the newest \
             copy",
            newer.robot, newer.revoked.list
        )));
    }
    text += &taken_by(&here, list);
    text += &match name {
        OPERATOR => {
            "There is a new key for the operator; 'coorp keys bundle @operator' is for other machines. Browsers elsewhere need \
             'coorp keys browser' again: delete the old page.crt on each device.\n"
                .to_owned()
        }
        _ => format!("For another robot of that name: 'coorp keys init', then 'coorp keys bundle {name}'.\n"),
    };
    Ok(text)
}

/// Says which robots have a list.
fn taken_by(here: &[Status], list: u64) -> String {
    let have = here.iter().filter(|status| status.revoked.list == list);
    let have: Vec<&str> = have.map(|status| status.robot.as_str()).collect();
    if have.is_empty() {
        return "No robot was reached. 'coorp watch' brings the list to each robot that it reaches.\n".to_owned();
    }
    format!(
        "Robots that have it: {}. They pass it on to all others that they meet.\n",
        have.join(", ")
    )
}

fn renew(file: &Path) -> Result<String, Failure> {
    let team = load(file)?;
    let folder = team.live.keys.display();
    if keys::renew(&team)? {
        return Ok(format!(
            "{folder} has a new authority and new keys for all. The old ones, in {folder}/old, stay valid.\n\
             For each robot: 'coorp keys bundle NAME'; on the robot, 'coorp keys install NAME.bundle' and a restart.\n\
             'coorp keys renew' again shows which robots have new keys; once all do: 'coorp keys renew --finish'.\n"
        ));
    }
    let (watch, _) = hand_out(&team, None, 0)?;
    let (changed, others) = watch.renewed();
    let names = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let reached = |name: &String| changed.contains(name) || others.contains(name);
    let all = team.robots.iter().map(|robot| robot.name.clone());
    let missing: Vec<String> = all.filter(|name| !reached(name)).collect();
    Ok(format!(
        "The keys are being renewed. Robots with new keys: {}; with old ones: {}; not reached: {}.\n\
         'coorp keys renew --finish' ends the renewal, and locks out robots that still have old ones.\n",
        names(&changed),
        names(&others),
        names(&missing)
    ))
}

fn finish(file: &Path) -> Result<String, Failure> {
    let team = load(file)?;
    let list = keys::finish(&team)?;
    let folder = team.live.keys.display();
    let (_, here) = hand_out(&team, None, list)?;
    Ok(format!(
        "The old authority and its keys are no longer valid: list {list}, in {folder}/revoked.crl.\n{}",
        taken_by(&here, list)
    ))
}

/// Brings the newest list to the robots that can be reached. Returns their status after that.
fn hand_out(team: &Team, without: Option<&str>, list: u64) -> Result<(Watch, Vec<Status>), Failure> {
    let (watch, began) = (Watch::open(team, false)?, Instant::now());
    let wanted = team.robots.iter().filter(|robot| Some(robot.name.as_str()) != without);
    let wanted = wanted.count();
    loop {
        let here = watch.look();
        let have = here.iter().filter(|status| status.revoked.list >= list).count();
        if have >= wanted || began.elapsed() > TAKE_MAX {
            return Ok((watch, here));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
