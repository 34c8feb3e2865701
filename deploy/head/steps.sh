# The steps by which meshd comes onto a head and leaves it. deploy/head/install sources them; deploy/package/build puts
# them into the package's maintainer scripts.
# shellcheck shell=sh

# What the caller may set. `here` has `requirements`, `programs` and meshd.toml; `from` is a checkout or a wheel.
here=${here:-/usr/share/meshd}
from=
pip_source=
extras=
offline=no
deps_only=no
user=
keep_machines=no
keep_machines_by='--keep-machines'

prefix=/opt/meshd
venv=$prefix/venv
etc=/etc/meshd
state_dir=/var/lib/meshd
slurm_dir=/var/lib/meshd-slurm
programs_dir=/usr/lib/meshd
slurm_conf_dir=/etc/slurm
operator_record=$prefix/tailscale-operator
user_drop_in=/etc/systemd/system/meshd.service.d/10-user.conf
man_pages='man1/meshctl.1 man5/meshd.toml.5 man8/meshd.8'
units='meshd.service meshd-slurm.path meshd-slurm.service meshd-slurmctld.path meshd-slurmctld.service meshd-munge.path meshd-munge.service meshd-hosts.path meshd-hosts.service meshd-exports.path meshd-exports.service'

# Where the files go: `local` is what an administrator installs, `package` what dpkg owns.
layout() {
    case $1 in
    local)
        bin_dir=/usr/local/bin
        unit_dir=/etc/systemd/system
        conf_dir=/etc
        share_dir=/usr/local/share
        ;;
    package)
        bin_dir=/usr/bin
        unit_dir=/usr/lib/systemd/system
        conf_dir=/usr/lib
        share_dir=/usr/share
        ;;
    esac
    shared=$share_dir/meshd
    man_dir=$share_dir/man
    completion=$share_dir/bash-completion/completions/meshctl
}

say() { printf '%s\n' "meshd: $*"; }

die() {
    printf '%s\n' "meshd: $*" >&2
    exit 1
}

# Whether dpkg has meshd.
is_packaged() { [ "$(dpkg-query -W -f '${db:Status-Status}' meshd 2>/dev/null)" = installed ]; }

has() { command -v "$1" >/dev/null 2>&1; }

booted() { [ -d /run/systemd/system ]; }

slurm_user() {
    sed -n 's/^[[:space:]]*[Ss]lurm[Uu]ser[[:space:]]*=[[:space:]]*\([A-Za-z0-9_.-]*\).*/\1/p' \
        /etc/slurm/slurm.conf 2>/dev/null | tail -n 1
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

make_venv() {
    # After an upgrade of the distribution the old environment's Python is gone.
    wanted=$(python3 -c 'import sys; print(*sys.version_info[:2])')
    found=$("$venv/bin/python" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null) || found=none
    [ "$wanted" = "$found" ] && return
    [ "$offline" = no ] || die "--offline: $venv does not fit this python3; run --deps-only first"
    say "making $venv"
    mkdir -p "$prefix"
    chmod 755 "$prefix"
    python3 -m venv --clear "$venv"
}

# meshd up to 0.1 wrote Slurm's files itself, in its own directory: root takes them over.
adopt_slurm_files() {
    "$venv/bin/python" -I -m meshd.slurm.headfiles --adopt ||
        die "Slurm's files were not taken over, and nothing that runs has changed: repair what is named above, then run this again"
}

install_settings() {
    if [ -e "$etc/meshd.toml" ]; then
        say "$etc/meshd.toml is kept as it is"
    else
        install -m 644 "$here/meshd.toml" "$etc/meshd.toml"
    fi
}

# The user that may control tailscaled besides root; "" for none. Fails when tailscaled does not answer.
operator() {
    tailscale debug prefs 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin).get("OperatorUser", ""))' 2>/dev/null
}

set_operator() {
    if [ ! -e "$operator_record" ] && before=$(operator) && [ "$before" != "$user" ]; then
        printf '%s\n%s\n' "$before" "$user" >"$operator_record"
    fi
    tailscale set --operator="$user" >/dev/null 2>&1 ||
        say "tailscaled does not run; afterwards: tailscale set --operator=$user"
}

# Restores the operator from before meshd, unless another one was set since.
restore_operator() {
    [ -r "$operator_record" ] || return 0
    before=$(sed -n 1p "$operator_record")
    ours=$(sed -n 2p "$operator_record")
    if ! now=$(operator); then
        say "tailscaled does not answer; afterwards: tailscale set --operator=$before"
    elif [ "$now" != "$ours" ]; then
        say "tailscale's operator is ${now:-nobody} by now, and stays so"
    elif tailscale set --operator="$before" >/dev/null 2>&1; then
        say "tailscale's operator is ${before:-nobody} again, as before meshd"
    else
        say "tailscale's operator could not be set: tailscale set --operator=$before"
    fi
    rm -f "$operator_record"
}

next_steps() {
    cat <<EOF

meshd $("$venv/bin/python" -c 'import meshd; print(meshd.__version__)') is installed. Next:

  1. edit $etc/meshd.toml: a pool and a provider
  2. put a reusable, pre-approved, tagged auth key of your tailnet (https://login.tailscale.com/admin/settings/keys) into
     $etc/credentials/tailscale/auth_key, and the providers' keys beside it: aws/secret_access_key,
     gce/service_account, lambda/api_key, runpod/api_key, paperspace/api_key (root's, mode 0600)
  3. meshctl init          prepares Slurm's files; shows each change first. After an upgrade run it again
     meshctl init --compute lets this machine run jobs too, on its own GPUs (docs/workstation.md)
     meshctl init --share  gives the nodes the head's home directories, by NFS (docs/files.md)
  4. meshctl config check
  5. systemctl enable --now meshd
  6. meshctl doctor

Jobs on an empty pool rent machines then: set a [budget] in $etc/meshd.toml, or scale_from_queue = false in a pool that
\`meshctl scale\` alone shall scale.

People who may change things: usermod -aG meshd NAME
EOF
}

# Prints "POOL MACHINE" for each rented machine; fails when the journal cannot be read.
rented() {
    if [ ! -e "$state_dir/journal.db" ]; then return 0; fi
    # As the journal's owner: root does not open a file that another user can write.
    runuser -u "$(stat -c %U "$state_dir/journal.db")" -- python3 -I - "$state_dir/journal.db" <<'END'
import sqlite3, sys
query = "SELECT pool, name FROM machines WHERE phase NOT IN ('requested', 'gone') ORDER BY pool, name"
journal = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=10)
for row in journal.execute(query):
    print(*row)
END
}

# Prints the form of the journal; nothing where there is none. Fails when it cannot be read.
journal_form() {
    if [ ! -e "$state_dir/journal.db" ]; then return 0; fi
    runuser -u "$(stat -c %U "$state_dir/journal.db")" -- python3 -I - "$state_dir/journal.db" <<'END'
import sqlite3, sys
journal = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=10)
print(journal.execute("PRAGMA user_version").fetchone()[0])
END
}

# An older meshd does not start with a newer journal, so it is not installed over one. The way back puts the copy from
# before the upgrade in the journal's place, while the newer meshctl is there: that knows whether it is safe.
refuse_newer_journal() { # FORM
    found=$(journal_form 2>/dev/null) || return 0
    if [ -z "$found" ] || [ "$found" -le "$1" ]; then return 0; fi
    copy=$(find "$state_dir" -maxdepth 1 -name 'journal.db.form-*[0-9]' | head -n 1)
    say "the journal has form $found, and the meshd that is to be installed knows up to $1: it would not start"
    say "first: systemctl stop meshd, then meshctl restore ${copy:-the backup from before the upgrade}"
    die "nothing was changed; see docs/operations.md, Upgrade"
}

refuse_while_rented() {
    if ! found=$(rented); then
        [ "$keep_machines" = no ] || return 0
        die "cannot find out whether machines are rented: $state_dir/journal.db cannot be read. See \`meshctl nodes\`; $keep_machines_by removes meshd anyway"
    fi
    [ -n "$found" ] || return 0
    count=$(printf '%s\n' "$found" | wc -l)
    names=$(printf '%s\n' "$found" | cut -d' ' -f2 | tr '\n' ' ')
    if [ "$keep_machines" = yes ]; then
        say "left running, and costing: $names"
        return 0
    fi
    say "$count machines are rented: $names"
    for pool in $(printf '%s\n' "$found" | cut -d' ' -f1 | sort -u); do
        say "end them: meshctl scale --pool $pool --gpus 0 --yes --wait"
    done
    die "nothing was removed. With $keep_machines_by they go on running, and costing, without meshd"
}

# --- the program ------------------------------------------------------------------------------------------------------

# The dependencies: each package with its version and the hashes of its files (made by deploy/head/lock).
locks() {
    printf '%s\n' "$here/requirements/base.txt"
    for extra in $(printf '%s' "$extras" | tr ',' ' '); do
        case $extra in
        aws | gce | runpod) printf '%s\n' "$here/requirements/$extra.txt" ;;
        *) die "--extras: there is no '$extra'" ;;
        esac
    done
    [ ! -d "$from" ] || printf '%s\n' "$here/requirements/build.txt"
}

install_dependencies() {
    say "installing dependencies"
    files=$(locks) || exit 1
    set --
    for file in $files; do set -- "$@" -r "$file"; done
    # shellcheck disable=SC2086 # word splitting is wanted: options
    pip install -q --upgrade --require-hashes --only-binary=:all: $pip_source "$@"
}

install_python() {
    [ "$offline" = yes ] || install_dependencies
    [ "$deps_only" = no ] || return 0
    say "installing meshd from $from"
    # The build tools are installed by now. --force-reinstall: the version number may be the same.
    pip install -q --no-deps --no-build-isolation --force-reinstall --no-index "$from"
}

# --- files ------------------------------------------------------------------------------------------------------------

# Copy what meshd is besides its virtual environment from a checkout. `root` is "" on a head, or the tree of a package.
put_files() { # CHECKOUT ROOT PYTHON
    put_units "$1" "$2"
    put_recipes "$1" "$2"
    put_monitoring "$1" "$2"
    put_links "$2"
    put_made_files "$1" "$2" "$3"
}

put_units() {
    for unit in $units; do
        install -D -m 644 "$1/systemd/$unit" "$2$unit_dir/$unit"
    done
    install -D -m 644 "$1/systemd/slurmctld.service.d/10-meshd.conf" "$2$unit_dir/slurmctld.service.d/10-meshd.conf"
    install -D -m 644 "$1/systemd/sysusers.d/meshd.conf" "$2$conf_dir/sysusers.d/meshd.conf"
    install -D -m 644 "$1/systemd/tmpfiles.d/meshd.conf" "$2$conf_dir/tmpfiles.d/meshd.conf"
}

# The recipes, for every user to copy. Links between them become files.
put_recipes() {
    rm -rf "$2$shared/recipes" "$2$shared/recipes.new"
    mkdir -p "$2$shared"
    cp -rL "$1/recipes" "$2$shared/recipes.new"
    chmod -R u=rwX,go=rX "$2$shared/recipes.new"
    mv "$2$shared/recipes.new" "$2$shared/recipes"
}

# For Prometheus and Grafana: docs/monitoring.md.
put_monitoring() {
    rm -rf "$2$shared/prometheus" "$2$shared/grafana"
    for folder in prometheus grafana; do
        install -d -m 755 "$2$shared/$folder"
        install -m 644 "$1/deploy/$folder"/* "$2$shared/$folder"
    done
}

put_links() {
    mkdir -p "$1$bin_dir"
    for program in meshd meshctl; do
        link=$1$bin_dir/$program
        if [ -e "$link" ] && [ ! -L "$link" ]; then
            die "$link exists and is no link of ours: move it away"
        fi
        ln -sfn "$venv/bin/$program" "$link"
    done
}

# What meshd's own code makes: the completion and the man pages.
put_made_files() {
    to=$2$completion
    mkdir -p "${to%/*}" "$2$man_dir"
    if PYTHONPATH=$1 "$3" -B -m meshd.cli.main completion bash >"$to.new" 2>/dev/null && [ -s "$to.new" ]; then
        chmod 644 "$to.new"
        mv "$to.new" "$to"
    else
        rm -f "$to.new"
    fi
    "$3" -B "$1/deploy/man/pages.py" "$2$man_dir" || say "the man pages could not be made"
    if [ -z "$2" ] && has mandb; then mandb -q "$man_dir" 2>/dev/null || :; fi
}

# What slurmctld runs, as SlurmUser, for power saving and before jobs. `meshctl init` names them in slurm.conf, so they
# stay when meshd goes: without its PrologSlurmctld no job would start.
install_slurm_programs() {
    for program in "$here"/programs/*; do
        install -D -m 755 "$program" "$programs_dir/${program##*/}"
    done
}

# Take away what `put_files` put, by the layout.
remove_files() {
    for unit in $units; do rm -f "$unit_dir/$unit"; done
    rm -f "$unit_dir/slurmctld.service.d/10-meshd.conf"
    rmdir "$unit_dir/slurmctld.service.d" 2>/dev/null || :
    rm -f "$conf_dir/sysusers.d/meshd.conf" "$conf_dir/tmpfiles.d/meshd.conf" "$completion"
    for page in $man_pages; do rm -f "$man_dir/$page"; done
    for program in meshd meshctl; do
        case $(readlink "$bin_dir/$program" 2>/dev/null || :) in
        "$prefix"/*) rm -f "$bin_dir/$program" ;;
        esac
    done
    rm -rf "$shared"
}

# --- the system -------------------------------------------------------------------------------------------------------

# SlurmUser: `user` if it is set, else what slurm.conf says.
choose_user() {
    [ -n "$user" ] || user=$(slurm_user)
    [ -n "$user" ] || say "slurm.conf names no SlurmUser yet: meshd will run as slurm, so put SlurmUser=slurm there"
    user=${user:-slurm}
    # The user slurm is created when it is missing.
    [ "$user" = slurm ] || id "$user" >/dev/null 2>&1 || die "there is no user $user: meshd runs as SlurmUser"
}

set_up_accounts() {
    systemd-sysusers meshd.conf
    if [ "$user" = slurm ]; then
        rm -f "$user_drop_in"
        rmdir "${user_drop_in%/*}" 2>/dev/null || :
    else
        mkdir -p "${user_drop_in%/*}"
        printf '# Written by the installer: SlurmUser.\n[Service]\nUser=%s\nGroup=%s\n' "$user" "$(id -gn "$user")" >"$user_drop_in"
    fi
    systemd-tmpfiles --create meshd.conf
    if booted; then systemctl daemon-reload; fi
}

# What follows once files, virtual environment and accounts are there. Only a meshd that runs is started again.
finish_installation() {
    install_slurm_programs
    install_settings
    adopt_slurm_files
    set_operator
    if booted && systemctl is-active -q meshd.service; then
        systemctl restart meshd.service || die "the new meshd does not start: journalctl -u meshd"
        say "meshd was restarted; machines and jobs did not notice"
    fi
}

# Stop meshd, and undo what it has put outside its own directories and Slurm's.
leave_head() {
    if booted; then
        for unit in $units; do
            systemctl disable --now "$unit" >/dev/null 2>&1 || :
        done
    fi
    if [ -x "$venv/bin/python" ]; then
        "$venv/bin/python" -I -m meshd.tailnet.headhosts --remove || say "remove the block \"# BEGIN meshd\" from /etc/hosts"
        "$venv/bin/python" -I -m meshd.shares.headexports --remove || say "remove /etc/exports.d/meshd.exports, then \`exportfs -ra\`"
        "$venv/bin/python" -I -m meshd.shares.setup_io --remove || say "remove /etc/nfs.conf.d/meshd.conf and nfs-server.service.d/meshd.conf in /etc/systemd/system"
        "$venv/bin/python" -I -m meshd.slurm.init.compute_setup --remove || say "jobs still run on this host: when they have ended, remove the lines between \"# BEGIN meshd\" and \"# END meshd\" from slurm.conf and gres.conf, then \`systemctl restart slurmctld\`"
    fi
    restore_operator
}

remove_environment() {
    rm -f "$user_drop_in"
    rmdir "${user_drop_in%/*}" 2>/dev/null || :
    rm -rf "$venv"
    rmdir "$prefix" 2>/dev/null || :
    if booted; then systemctl daemon-reload; fi
    if grep -qs 'meshctl init --accounting' /etc/slurm/slurmdbd.conf; then
        say "accounting stays as it is: slurmdbd, MariaDB and all records of jobs (docs/accounting.md has how it ends)"
    fi
}

what_is_kept() {
    say "removed. Kept: $etc (settings, credentials), $state_dir (journal), $slurm_dir (nodes.conf, which slurm.conf includes), $programs_dir (its TaskProlog, PrologSlurmctld, ResumeProgram and SuspendProgram, which do nothing without meshd), the group meshd"
}

# --- purge ------------------------------------------------------------------------------------------------------------

# Undo the changes of `meshctl init` to Slurm's files, the newest first: each is recorded with the file before and after
# it. What somebody has changed since stays. Prints the files that are not as they were; fails when there is one.
restore_slurm_files() {
    left=
    set --
    for record in "$slurm_dir"/changes/*/; do set -- "$record" "$@"; done
    for record in "$@"; do
        if [ ! -e "$record/path" ]; then continue; fi
        file=$(cat "$record/path")
        restore_slurm_file "$record" "$file" || left="$left $file"
    done
    for link in nodes.conf meshd-gres.conf; do
        case $(readlink "$slurm_conf_dir/$link" 2>/dev/null || :) in
        "$slurm_dir"/*) rm -f "$slurm_conf_dir/$link" ;;
        esac
    done
    left="$left$(grep -lsF "$programs_dir/" "$slurm_conf_dir"/*.conf | sed 's/^/ /' | tr -d '\n')"
    [ -z "$left" ] || printf '%s\n' "$left"
    [ -z "$left" ]
}

restore_slurm_file() { # RECORD FILE
    if [ ! -e "$2" ]; then return 0; fi
    if cmp -s "$2" "$1/after"; then
        if [ -e "$1/before" ]; then cat "$1/before" >"$1/merged"; else
            rm -f "$2"
            return 0
        fi
    elif [ -e "$1/before" ]; then
        diff3 -m -E "$2" "$1/after" "$1/before" >"$1/merged" || return 1
    else
        return 1
    fi
    # Into a copy of the file: its owner and mode stay, and Slurm reads the old one or the new one.
    cp -p "$2" "$2.meshd-purge" && cat "$1/merged" >"$2.meshd-purge" && mv "$2.meshd-purge" "$2"
}

purge() {
    if ! machines=$(rented) || [ -n "$machines" ]; then
        die "nothing was purged: $state_dir knows rented machines, or cannot be read. Install meshd again and end them: meshctl scale --gpus 0. To forget them, remove $state_dir yourself"
    fi
    if left=$(restore_slurm_files); then
        rm -rf "$programs_dir" "$slurm_dir"
        say "Slurm's files are as they were before meshd; take it over: systemctl restart slurmctld"
    else
        say "not as before meshd, since somebody has changed them:$left. Remove meshd's lines there by hand (docs/operations.md, Uninstall); until then $programs_dir and $slurm_dir stay"
    fi
    rm -rf "$state_dir"
    # The site's own PrologSlurmctld, which a slurm.conf that stays may still name.
    find "$etc" -mindepth 1 -maxdepth 1 ! -name prolog-slurmctld -exec rm -rf {} + 2>/dev/null || :
    [ -e "$programs_dir" ] || rm -f "$etc/prolog-slurmctld"
    rmdir "$etc" 2>/dev/null || :
}
