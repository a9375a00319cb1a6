#!/bin/sh
# Simulated npu-smi: answers from the files below $npus, one folder for each NPU. Builtins only.
# $npu/smi is one line: health, temperature (C), power (W), bus id, HBM in use at idle (MB), AICore (%).
# $npu/hbm/PID is one line: HBM in use (MB), process name; a process that is gone does not count.
# A fault of the tool is a word in $faults/npu-smi.all[.QUERY] or $faults/npu-smi.NPU.QUERY: the narrowest counts.
npus='@NODE@/npu'
faults='@NODE@/fault'
platform='@PLATFORM@'
count=@COUNT@      # NPUs (cards)
chips=@CHIPS@      # chips of one
name='@NAME@'
hbm=@HBM@          # MB of one chip
version='@VERSION@'
server=@SERVER@    # index of this server in its super pod
firmware=@FIRMWARE@
[ ! -f "$faults/driver_version" ] || read -r version <"$faults/driver_version"
[ ! -f "$faults/firmware_version" ] || read -r firmware <"$faults/firmware_version"

thin=+---------------------------+---------------+----------------------------------------------------+
thick=+===========================+===============+====================================================+
wide=+------------------------------------------------------------------------------------------------+

usage() { echo "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]"; }

load() { # phy: sets health temp power bus base core, and $used with the processes' HBM
    read -r health temp power bus base core <"$npus/$1/smi"
    used=$base
    for file in "$npus/$1/hbm"/*; do
        [ -d "/proc/${file##*/}" ] || continue
        read -r mb process <"$file" || continue
        used=$((used + mb))
    done
}

table() {
    second='Chip                 '
    [ "$platform" != a3 ] || second='Chip  Phy-ID         '
    echo "$wide"
    printf '| npu-smi %-25sVersion: %-52s |\n' "$version" "$version"
    echo "$thin"
    echo "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
    echo "| $second     | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"
    echo "$thick"
    phy=0
    while [ $phy -lt $((count * chips)) ]; do
        npu=$((phy / chips)) chip=$((phy % chips))
        rule=$thick number=
        if [ ! -f "$npus/$phy/gone" ]; then
            load $phy
            [ $chip = 0 ] || power=-
            [ $((chip + 1)) -eq $chips ] || rule=$wide
            [ "$platform" != a3 ] || number=$phy
            printf '| %-6s%-20s| %-14s| %-12s%-18s0    / 0             |\n' $npu "$name" "$health" "$power" "$temp"
            printf '| %-6s%-20s| %-14s| %-12s0    / 0          %-5s/ %-14s|\n' $chip "$number" "$bus" "$core" "$used" $hbm
            echo "$rule"
        fi
        phy=$((phy + 1))
    done
    echo "$thin"
    echo "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    echo "$thick"
    phy=0
    while [ $phy -lt $((count * chips)) ]; do
        npu=$((phy / chips)) chip=$((phy % chips))
        [ $chip != 0 ] || idle=1
        for file in "$npus/$phy/hbm"/*; do
            [ -d "/proc/${file##*/}" ] || continue
            read -r mb process <"$file" || continue
            idle=0
            printf '| %-8s%-18s| %-14s| %-25s| %-24s|\n' $npu $chip "${file##*/}" "$process" "$mb"
        done
        phy=$((phy + 1))
        if [ $((chip + 1)) -eq $chips ]; then
            [ $idle = 0 ] || printf '| No running processes found in NPU %-61s|\n' $npu
            echo "$thick"
        fi
    done
}

card_is_there() { # card
    [ ! -f "$npus/$(($1 * chips))/gone" ] || [ ! -f "$npus/$((($1 + 1) * chips - 1))/gone" ]
}
list() {
    npu=0 total=0
    while [ $npu -lt $count ]; do
        ! card_is_there $npu || total=$((total + 1))
        npu=$((npu + 1))
    done
    printf '\t%-30s : %s\n' 'Total Count' $total
    npu=-1
    while [ $((npu += 1)) -lt $count ]; do
        card_is_there $npu || continue
        printf '\n\t%-30s : %s\n\t%-30s : %s\n' 'NPU ID' $npu 'Chip Count' $chips
    done
}

mapping() {
    if [ "$platform" = a3 ]; then
        row='\t%-30s %-30s %-30s %-30s %s\n'
        printf "$row" 'NPU ID' 'Chip ID' 'Chip Logic ID' 'Chip Phy-ID' 'Chip Name'
    else
        row='\t%-30s %-30s %-30s %s\n'
        printf "$row" 'NPU ID' 'Chip ID' 'Chip Logic ID' 'Chip Name'
    fi
    npu=-1 logic=0
    while [ $((npu += 1)) -lt $count ]; do
        card_is_there $npu || continue
        chip=-1
        while [ $((chip += 1)) -lt $chips ]; do
            phy=$((npu * chips + chip))
            [ ! -f "$npus/$phy/gone" ] || continue
            if [ "$platform" = a3 ]; then
                printf "$row" $npu $chip $logic $phy "$name"
            else
                printf "$row" $npu $chip $logic "Ascend $name"
            fi
            logic=$((logic + 1))
        done
        if [ "$platform" = a3 ]; then
            printf "$row" $npu $chips - - Mcu
        else
            printf "$row" $npu $chips - Mcu
        fi
    done
}

pair() { printf '\t%-30s : %s\n' "$1" "$2"; }

header() {
    pair 'NPU ID' "$card"
    pair 'Chip Count' $chips
}

per_chip() { # function: once for each chip, the id last, blocks after a blank line
    case $1,$chips in
    memory,1 | proc_mem,1) pair 'NPU ID' "$card" ;;
    *) header ;;
    esac
    each=-1
    while [ $((each += 1)) -lt $chips ]; do
        [ "${chip:-$each}" = $each ] && [ ! -f "$npus/$((card * chips + each))/gone" ] || continue
        load $((card * chips + each))
        case $1,$chips in memory,1 | proc_mem,1) ;; *) echo ;; esac
        "$1"
        pair 'Chip ID' $each
    done
}

usages() {
    pair 'DDR Capacity(MB)' 0
    pair 'DDR Usage Rate(%)' 0
    pair 'DDR Hugepages Total(page)' 0
    pair 'DDR Hugepages Usage Rate(%)' 0
    pair 'HBM Capacity(MB)' $hbm
    pair 'HBM Usage Rate(%)' $((used * 100 / hbm))
    pair 'Aicore Usage Rate(%)' "$core"
    pair 'Aivector Usage Rate(%)' "$core"
    pair 'Aicpu Usage Rate(%)' 0
    pair 'Ctrlcpu Usage Rate(%)' 6
    pair 'DDR Bandwidth Usage Rate(%)' 0
    pair 'HBM Bandwidth Usage Rate(%)' 0
    pair 'NPU Utilization(%)' "$core"
    pair 'Aicube Usage Rate(%)' "$core"
}
temperature() { pair 'NPU Temperature (C)' "$temp"; }
mcu_temperature() {
    echo
    pair 'LM75A_TE (C)' 36
    pair 'LM75B_TE (C)' 36
    pair 'Chip Name' MCU
}
watts() { pair 'NPU Real-time Power(W)' "$power"; }
memory() { # of cards with one chip the tool leaves the count and the blank line out
    pair 'DDR Capacity(MB)' 0
    pair 'DDR Clock Speed(MHz)' 0
    pair 'HBM Capacity(MB)' $hbm
    pair 'HBM Clock Speed(MHz)' 1600
    pair 'HBM Temperature(C)' "$temp"
    pair 'HBM Manufacturer ID' 0x57
}
health_word() { pair Health "$health"; }
mcu_health() {
    echo
    pair Health OK
    pair 'Chip Name' MCU
}
proc_mem() {
    some=
    for file in "$npus/$((card * chips + each))/hbm"/*; do
        [ -d "/proc/${file##*/}" ] || continue
        read -r mb process <"$file" || continue
        some=1
        printf '\tProcess id:%-7d Process name:%-17s Process memory(MB):%s\n' "${file##*/}" "$process" "$mb"
    done
    [ -n "$some" ] || printf '\tNo process in device.\n'
}
common() {
    header
    each=-1
    while [ $((each += 1)) -lt $chips ]; do
        [ "${chip:-$each}" = $each ] && [ ! -f "$npus/$((card * chips + each))/gone" ] || continue
        load $((card * chips + each))
        echo
        pair 'Chip ID' $each
        pair 'Memory Usage Rate(%)' 0
        pair 'HBM Usage Rate(%)' $((used * 100 / hbm))
        pair 'Aicore Usage Rate(%)' "$core"
        pair 'Aicore Freq(MHZ)' 1800
        pair 'Aicore curFreq(MHZ)' 800
        pair 'Aicore Count' 24
        pair 'Temperature(C)' "$temp"
        [ $each != 0 ] || pair 'NPU Real-time Power(W)' "$power"
    done
    [ -z "$chip" ] || return 0
    echo
    pair 'Chip Name' mcu
    pair 'Temperature(C)' 38
}
wide() { printf '\t%-40s : %s\n' "$1" "$2"; }
grown() { # name: sets $total to what the fault's line of this name in the NPU's file `ecc` or `hccs_count` says
    total=0
    read -r up rest </proc/uptime
    while read -r key value rate since; do
        [ "$key" != "$1" ] || total=$((total + value + rate * (${up%.*} - since)))
    done <"$2"
}
ecc() {
    file=$npus/$((card * chips + each))/ecc
    wide 'DDR Single Bit Error Count' 0
    wide 'DDR Double Bit Error Count' 0
    wide 'DDR Single Bit Aggregate Total Err Cnt' 0
    wide 'DDR Double Bit Aggregate Total Err Cnt' 0
    wide 'DDR Single Bit Isolated Pages Count' 0
    wide 'DDR Double Bit Isolated Pages Count' 0
    for row in 'single Single Bit Error Count' 'double Double Bit Error Count' \
        'single-total Single Bit Aggregate Total Err Cnt' 'double-total Double Bit Aggregate Total Err Cnt' \
        'single-pages Single Bit Isolated Pages Count' 'double-pages Double Bit Isolated Pages Count' \
        'single-next Single Bit Next-Isolated Pages Count' 'double-next Double Bit Next-Isolated Pages Count'; do
        total=0
        [ ! -f "$file" ] || grown "${row%% *}" "$file"
        wide "HBM ${row#* }" $total
    done
}
hccs() { # seven links; packets move with the uptime
    home=$npus/$((card * chips + chip))
    state=OK lanes=1111
    [ ! -f "$home/hccs" ] || read -r state lanes <"$home/hccs"
    read -r up rest </proc/uptime
    up=${up%.*}
    retries=0 errors=0
    if [ -f "$home/hccs_count" ]; then
        grown retry "$home/hccs_count"
        retries=$total
        grown error "$home/hccs_count"
        errors=$total
    fi
    array() { # key, then one cell for each link
        pair "hccs $1 " "[$(printf '%s' "$2")]"
    }
    cells() { # first rest: sets $list
        list=$(printf '%-13s%-13s%-13s%-13s%-13s%-13s%s' "$1" "$2" "$2" "$2" "$2" "$2" "$2")
    }
    pair 'hccs health status' "${state:-OK}"
    cells 4 4 && array 'lane mode' "$list"
    cells "${lanes:-1111}" 1111 && array 'link lane list' "$list"
    cells 224 224 && array 'link speed' "$list"
    cells $((up * 1043)) $((up * 977)) && array 'tx packets' "$list"
    cells $((up * 1043 * 20)) $((up * 977 * 20)) && array 'tx bytes' "$list"
    cells $((up * 1031)) $((up * 983)) && array 'rx packets' "$list"
    cells $((up * 1031 * 20)) $((up * 983 * 20)) && array 'rx bytes' "$list"
    cells $retries 0 && array 'retry count' "$list"
    cells $errors 0 && array 'error count' "$list"
    cells 0 0 && array 'first error lane' "$list"
}
cell() { printf '%-11s' "$1"; }
topo() {
    total=$((count * chips)) row=0
    word=NPU
    [ "$platform" != a3 ] || word=Phy-ID
    cell ''
    while [ $row -lt $total ]; do
        cell "$word$row"
        row=$((row + 1))
    done
    echo 'CPU Affinity'
    row=0
    while [ $row -lt $total ]; do
        cell "$word$row"
        column=0
        while [ $column -lt $total ]; do
            if [ $row = $column ]; then
                cell X
            elif [ "$platform" = a3 ]; then
                [ $((row / 2)) = $((column / 2)) ] && cell SIO || cell HCCS_SW
            else
                cell HCCS
            fi
            column=$((column + 1))
        done
        echo "$((row / 2 * 24))-$((row / 2 * 24 + 23))"
        row=$((row + 1))
    done
    printf '\nLegend:\n  X    = Self\n'
    echo '  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.'
    echo '  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.'
    echo '  PIX  = Path traversing a single PCIe switch'
    echo '  PXB  = Path traversing multipul PCIe switches'
    [ "$platform" != a3 ] || echo '  SIO  = Path traversing the bus between two chips of one NPU.'
    [ "$platform" != a3 ] || echo '  HCCS_SW = Connection traversing HCCS switches.'
    echo '  HCCS = Connection traversing HCCS.'
}
board_chip() {
    load $((card * chips + chip))
    pair 'NPU ID' "$card"
    pair 'Chip ID' "$chip"
    pair 'Chip Type' Ascend
    pair 'Chip Name' "$name"
    pair 'Chip Version' V1
    pair 'Board ID' 0x02
    pair 'PCB ID' NA
    pair 'BOM ID' 1
    pair 'VDie ID' "0000000$card 0000000$chip 00000003 00000004 00000005"
    pair 'NDie ID' "0000000$card 0000000$chip 00000008 00000009 0000000A"
    pair 'Chip Position ID' "$chip"
    pair 'PCIe Bus Info' "$bus"
    pair 'Firmware Version' "$firmware"
}
board() {
    product=IT21HMDC_Bin5 device=0xD802 subsystem=0x3003 number=0x60
    [ "$platform" != a3 ] || product=IT22HMDA_2_S device=0xD803 subsystem=0x3001 number=0x71
    load $((card * chips))
    pair 'NPU ID' "$card"
    pair 'Product Name' $product
    pair Model NA
    pair Manufacturer Huawei
    pair 'Serial Number' "$(printf '%012d' $((server * 100 + card)))"
    pair 'Software Version' "$version"
    pair 'Firmware Version' "$firmware"
    pair Compatibility OK
    pair 'Board ID' $number
    pair 'PCB ID' A
    pair 'BOM ID' 1
    pair 'PCIe Bus Info' "$bus"
    pair 'Slot ID' 0
    pair 'Class ID' NA
    pair 'PCI Vendor ID' 0x19E5
    pair 'PCI Device ID' $device
    pair 'Subsystem Vendor ID' 0x19E5
    pair 'Subsystem Device ID' $subsystem
    pair 'Chip Count' $chips
}
spod() { # $npu/pod and $npu/sdid are faults' words
    phy=$((card * chips + chip)) index=$server pod=0 sdid=
    [ ! -f "$npus/$phy/pod" ] || read -r pod <"$npus/$phy/pod"
    [ ! -f "$npus/$phy/index" ] || read -r index <"$npus/$phy/index"
    [ ! -f "$npus/$phy/sdid" ] || read -r sdid <"$npus/$phy/sdid"
    pair SDID ${sdid:-$(((index << 22) | (card << 18) | (chip << 16) | phy))}
    pair 'Super Pod Size' 384
    pair 'Super Pod ID' "$pod"
    pair 'Server Index' "$index"
}
health_chip() {
    load $((card * chips + chip))
    pair 'Health Status' "$health"
    case $health in
    OK)
        pair 'Error Code' NA
        pair 'Error Information' NA
        ;;
    *)
        pair 'Error Code' 80E01801
        pair 'Error Information' 'node type=hbm, sensor type=Memory Sensor, event state=HBM multi bit error'
        ;;
    esac
}
bad_id() { # word
    echo "Invalid $1 id."
    [ "$1" != card ] || echo "Error parameter of -i"
    usage
    exit 255
}

consider() { # file...: the last one that is there says what is wrong
    for file in "$@"; do
        [ ! -f "$file" ] || read -r fault <"$file"
    done
}
suffer() { # does what the fault says
    case $fault in
    '' | well) return ;;
    hang)
        trap '' TERM INT HUP
        while :; do sleep 1000; done
        ;;
    busy)
        echo "Failed to execute npu-smi info. ret is -8012."
        exit 180
        ;;
    empty) exit 0 ;;
    garble)
        printf '\033[2J\033]0;x\007+---\n| npu-smi \377\376  Vers\001ion: \000 |\n'
        printf '| 99999999999999999999  Ascend | OK | -1 [/red] |\n\t: :\n'
        exit 0
        ;;
    denied)
        printf 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n'
        exit 187
        ;;
    driver)
        echo "dcmi module initialize failed. ret is -8005"
        exit 187
        ;;
    occupied)
        echo "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)"
        echo "dcmi model initialized failed, because the device is used. ret is -8020"
        exit 172
        ;;
    libraries)
        echo "npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file: No such file or directory" >&2
        exit 127
        ;;
    unsupported)
        echo "This device does not support querying ${type:-info}."
        exit 0
        ;;
    half)
        table | while IFS= read -r line; do
            case $line in '| 1     0 '*) break ;; '| 1     Ascend'*) echo "$line"; break ;; *) echo "$line" ;; esac
        done
        exit 0
        ;;
    *)
        echo 'Failed to query "health" result.'
        exit 241
        ;;
    esac
}

fault=
if [ -f "$faults/slow" ]; then
    read -r fault <"$faults/slow"
    sleep "$fault"
    fault=
fi
consider "$faults/npu-smi.all"

case $1 in
info) shift ;;
-v)
    echo "npu-smi version: $version"
    exit 0
    ;;
*)
    usage
    [ "$1" = -h ] || exit 255
    exit 0
    ;;
esac
type= card= chip=
while [ $# -gt 0 ]; do
    case $1 in
    -t) type=$2 ;;
    -i) card=$2 ;;
    -c) chip=$2 ;;
    -l | -m | -h | watch | proc)
        type=$1
        set -- "$1" "$@"
        ;;
    *)
        echo "Error parameter of $1"
        usage
        exit 255
        ;;
    esac
    shift
    [ $# = 0 ] || shift
done
case $type in
'') consider "$faults/npu-smi.all.table" ;;
-l) consider "$faults/npu-smi.all.list" ;;
-m) consider "$faults/npu-smi.all.map" ;;
*)
    consider "$faults/npu-smi.all.$type"
    case ${card:-x}${chip:-0} in
    *[!0-9]*) ;;
    *)
        phy=$((card * chips + ${chip:-0}))
        consider "$faults/npu-smi.$phy.$type"
        [ -n "$chip" ] || [ $chips = 1 ] || consider "$faults/npu-smi.$((phy + 1)).$type"
        ;;
    esac
    ;;
esac
suffer
case $type in
'') table; exit 0 ;;
-l) list; exit 0 ;;
-m) mapping; exit 0 ;;
topo) topo; exit 0 ;;
-h) usage; exit 0 ;;
watch)
    while :; do
        phy=0
        while [ $phy -lt $((count * chips)) ]; do
            load $phy
            printf '%-12s%-12s%-12s%-12s%-12s\n' $((phy / chips)) $((phy % chips)) "$power" "$temp" "$core"
            phy=$((phy + 1))
        done
        sleep 1
    done
    ;;
proc) while :; do sleep 1000; done ;;
esac
if [ -z "$card" ]; then
    echo "Error parameter of -i"
    usage
    exit 255
fi
case $card in
*[!0-9]*) bad_id card ;;
esac
[ "$card" -lt $count ] || bad_id card
[ -z "$chip" ] || case $chip in *[!0-9]*) bad_id chip ;; *) [ "$chip" -lt $chips ] || bad_id chip ;; esac
# What dropped off the bus is no card or chip any more.
card_is_there "$card" || bad_id card
[ -z "$chip" ] || [ ! -f "$npus/$((card * chips + chip))/gone" ] || bad_id chip
case $type in
usages) per_chip usages ;;
temp)
    per_chip temperature
    [ -n "$chip" ] || mcu_temperature
    ;;
power) per_chip watts ;;
memory) per_chip memory ;;
proc-mem) per_chip proc_mem ;;
common) common ;;
board) if [ -n "$chip" ]; then board_chip; else board; fi ;;
ecc) per_chip ecc ;;
health)
    if [ -n "$chip" ]; then
        health_chip
    else
        per_chip health_word
        mcu_health
    fi
    ;;
hccs)
    if [ -z "$chip" ]; then
        echo "This command must input card id and chip id."
        exit 255
    fi
    hccs
    ;;
spod-info)
    if [ "$platform" != a3 ]; then
        echo "This device does not support querying spod-info."
        exit 0
    fi
    if [ -z "$chip" ]; then
        echo "This command must input card id and chip id."
        exit 255
    fi
    spod
    ;;
product | template-info) echo "This device does not support querying $type." ;;
*)
    echo "Error parameter of -t"
    exit 255
    ;;
esac
