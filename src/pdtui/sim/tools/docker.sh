#!/bin/sh
# Simulated docker: `exec` (with -i, -t, -e, -w, -u) into the containers below $containers, and `ps`, `inspect`.
containers='@NODE@/containers'

missing() {
    echo "Error response from daemon: No such container: $1" >&2
    exit 1
}
command=$1
[ $# = 0 ] || shift
case $command in
exec)
    set_env=
    while [ $# -gt 0 ]; do
        case $1 in
        -i | -t | -it | -ti | --interactive | --tty) ;;
        -e | --env)
            set_env=$2
            shift
            ;;
        -w | --workdir | -u | --user) shift ;;
        -*)
            echo "unknown shorthand flag: '${1#-}' in $1" >&2
            exit 125
            ;;
        *) break ;;
        esac
        shift
    done
    if [ $# -lt 2 ]; then
        echo '"docker exec" requires at least 2 arguments.' >&2
        exit 1
    fi
    name=$1
    shift
    [ -d "$containers/$name" ] || missing "$name"
    cd "$containers/$name" || exit 1
    exec env -i HOME="$containers/$name/root" PATH="$containers/$name/usr/local/bin:@PATH@" \
        HOSTNAME='@HOSTNAME@' LANG=C.UTF-8 PDTUI_SIM_NODE='@NODE@' PDTUI_ADDRESS_VIEW='@ADDRESS@' \
        ${PDTUI_MACHINE_VIEW:+PDTUI_MACHINE_VIEW="$PDTUI_MACHINE_VIEW"} \
        ${set_env:+"$set_env"} "$@"
    ;;
inspect)
    for word in "$@"; do name=$word; done
    [ -d "$containers/$name" ] || missing "$name"
    echo '[{"Name": "/'"$name"'", "State": {"Status": "running", "Running": true}}]'
    ;;
ps)
    echo "CONTAINER ID   IMAGE          COMMAND   CREATED        STATUS        PORTS     NAMES"
    for folder in "$containers"/*; do
        [ ! -d "$folder" ] ||
            echo "0123456789ab   vllm-ascend    \"bash\"    2 hours ago    Up 2 hours              ${folder##*/}"
    done
    ;;
*)
    echo "docker: '$command' is not a docker command." >&2
    exit 1
    ;;
esac
