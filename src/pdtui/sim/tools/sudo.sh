#!/bin/sh
# Simulated sudo: the node's etc/sudo says how it takes this user: allow, password, unlisted, tty or missing.
node='@NODE@'
how=allow
[ ! -f "$node/etc/sudo" ] || read -r how <"$node/etc/sudo"
user=${USER:-nobody}

refuse() { # status text
    echo "$2" >&2
    exit "$1"
}
[ "$how" != missing ] || refuse 127 "bash: line 1: exec: sudo: not found"
asks=yes
while [ "${1#-}" != "$1" ]; do
    case $1 in
    -n | --non-interactive) asks=no ;;
    --)
        shift
        break
        ;;
    *) refuse 1 "sudo: invalid option -- '${1#-}'" ;;
    esac
    shift
done
[ $# -gt 0 ] || refuse 1 "usage: sudo -h | -K | -k | -V"
case $how,$asks in
tty,*) refuse 1 "sudo: sorry, you must have a tty to run sudo" ;;
unlisted,*) refuse 1 "$user is not in the sudoers file." ;;
password,no) refuse 1 "sudo: a password is required" ;;
password,yes)
    refuse 1 "sudo: a terminal is required to read the password; either use the -S option to read from" \
        "standard input or configure an askpass helper"
    ;;
esac
# As env_reset and secure_path leave it; the simulation's own variables stand for what is the machine itself.
PATH='@PATH@'
command -v "$1" >/dev/null || refuse 1 "sudo: $1: command not found"
exec env -i PATH="$PATH" HOME="$node/sudo" USER=root LOGNAME=root SHELL=/bin/bash LANG="${LANG:-C}" \
    SUDO_USER="$user" SUDO_UID="$(id -u)" SUDO_GID="$(id -g)" SUDO_COMMAND="$*" PDTUI_SIM_NODE="$node" \
    PDTUI_ROOT_VIEW="$node" ${PDTUI_ADDRESS_VIEW:+PDTUI_ADDRESS_VIEW="$PDTUI_ADDRESS_VIEW"} \
    ${PDTUI_MACHINE_VIEW:+PDTUI_MACHINE_VIEW="$PDTUI_MACHINE_VIEW"} "$@"
