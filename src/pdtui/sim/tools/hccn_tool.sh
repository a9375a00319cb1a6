#!/bin/sh
# Simulated hccn_tool: answers from the files below $npus, one folder for each NPU. Builtins only.
# A fault of the tool is a word in $faults/hccn_tool.NPU[.QUERY], NPU a number or `all`: the narrowest counts.
# Counters are $npu/counters, lines of `key value rate since`; the rest of a live machine moves with its uptime.
npus='@NODE@/npu'
faults='@NODE@/fault'
plane='@PLANE@' # npus/NODE/NPU of all nodes; roce/ADDRESS and vnic/ADDRESS say NODE/NPU
platform='@PLATFORM@'

fail() { # status text
    echo "$2" >&2
    exit "$1"
}
say() { # status text: what the tool prints on stdout, wrongly
    echo "$2"
    exit "$1"
}
usage() {
    echo "The total count of input parameters is wrong!" >&2
    fail 4 "Enter [ hccn_tool -h ] for more details."
}
unsupported() { say 13 "The command is not supported on this product."; }
get() { # name: sets $value to the first line of the NPU's file, empty without one
    value=
    [ ! -f "$npu/$1" ] || IFS= read -r value <"$npu/$1" || :
}

case $1 in
-h | --help)
    echo "usage: hccn_tool -i <device id> -<command> -g [options]"
    exit 0
    ;;
esac
[ $# -ge 3 ] || usage
[ "$1" = -i ] || fail 3 "Get unknown option!"
npu=$npus/$2
case $2 in
'' | *[!0-9]*) fail 4 "Get invalid device id." ;;
esac
[ -d "$npu" ] || fail 4 "Get invalid device id."

fault= query=${3#-}
for file in "$faults/slow" "$faults/hccn_tool.all" "$faults/hccn_tool.$2" "$faults/hccn_tool.all.$query" \
    "$faults/hccn_tool.$2.$query"; do
    [ ! -f "$file" ] || read -r fault <"$file"
    [ "$file" != "$faults/slow" ] || [ -z "$fault" ] || { sleep "$fault"; fault=; }
done
case $fault in
'' | well) ;;
hang)
    trap '' TERM INT HUP
    while :; do sleep 1000; done
    ;;
busy) say 11 "hccn_tool is busy, please try again." ;;
empty) exit 0 ;;
garble)
    printf '\033[2J\033]0;x\007%s sta\001tus\377\376: U\000P??\n99999999999999999999999999:-1 : [\n' "$query"
    exit 0
    ;;
denied) fail 12 "permission denied: pls check this cmd run permission." ;;
driver) fail 1 "Command execute failed!" ;;
libraries)
    fail 127 "$0: error while loading shared libraries: libhccl_heterog.so: cannot open shared object file: No such file or directory"
    ;;
unsupported) unsupported ;;
*) fail 1 "Cmd execute failed!" ;;
esac
[ ! -f "$npu/gone" ] || fail 4 "The device is not exist!"

command=$3 device=$2 separator= space= counted=
case $4 in
-g) ;;
-s | -c | -t | recovery) fail 12 "permission denied: pls check this cmd run permission." ;;
status) [ "$command" = -cfg ] || usage ;;
*) usage ;;
esac
case $command in
-link)
    get link
    echo "link status: $value"
    ;;
-net_health)
    get net_health
    echo "net health status: $value"
    ;;
-ip)
    get ip
    [ -n "$value" ] || fail 13 "Get ipconf failed, because no ip was preset there!"
    echo "ipaddr:$value"
    get netmask
    echo "netmask:$value"
    ;;
-gateway)
    get gateway
    [ -n "$value" ] || fail 2 "Get gateway failed, because no gateway was preset there!"
    echo "default gateway:$value, Iface:eth$2"
    ;;
-netdetect)
    get netdetect
    echo "netdetect address: ${value:-0.0.0.0}"
    ;;
-vnic)
    [ "$platform" = a3 ] || unsupported
    get vnic
    echo "vnic link status: $value"
    get vnic_ip
    echo "vnic ipaddr: $value"
    echo "vnic netmask: 255.0.0.0"
    ;;
-tls)
    get certs
    certs=$value
    [ "$certs" != none ] || fail 14 "No certificate found, please set certs firstly!"
    get tls
    echo "dev_id:$2, tls switch[$value](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), tls alarm time threshold[60]days"
    [ -n "$certs" ] || exit 0
    ends='Wed Jun 18 03:10:27 2053' words='(0:normal, 1:near expiration, 2:has expired)'
    case $certs in
    1) ends=$(LC_ALL=C date -u -d '+30 days' '+%a %b %e %H:%M:%S %Y') ;;
    2) ends='Sat Feb  3 03:10:27 2024' ;;
    esac
    for kind in 'pub cert' 'ca1 cert' 'ca2 cert'; do
        case $kind in
        pub*) subject=/C=CN/O=example/CN=www.example.com issuer='/C=CN/O=example/CN=example RSA PSS Sub CA' ;;
        ca1*) subject='/C=CN/O=example/CN=example RSA CA' issuer=$subject certs=0 ends='Thu Feb  3 03:10:27 2056' ;;
        ca2*) subject='/C=CN/O=example/CN=example RSA PSS Sub CA' issuer='/C=CN/O=example/CN=example RSA CA' ;;
        esac
        printf 'dev_id:%s, [%s] info:\n\t subject[%s]\n\t issuer[%s]\n\t start_time[%s GMT]\n\t end_time[%s GMT]\n' \
            "$2" "$kind" "$subject" "$issuer" 'Tue Jan 31 03:10:27 2023' "$ends"
        if [ "$certs" = 2 ]; then
            printf '\t tls expiration status[%s]%s\n' "$certs" "$words" >&2
        else
            printf '\t tls expiration status[%s]%s\n' "$certs" "$words"
        fi
    done
    ;;
-lldp)
    get lldp
    [ -n "$value" ] || exit 0
    set -- $value
    printf 'Chassis ID TLV\n\tMAC: %s\nPort ID TLV\n\tIfname: %s\nTime to Live TLV\n\t120\n' "$4" "$1"
    printf 'Port Description TLV\n\tto the NPUs\nSystem Name TLV\n\t%s\nSystem Description TLV\n' "$2"
    printf '\tVersatile Routing Platform Software\nVRP (R) software, Version 8.211\n\nExample switch\n\n'
    printf 'System Capabilities TLV\n\tSystem capabilities:  Bridge, Router\n\tEnabled capabilities: Bridge, Router\n'
    printf 'Management Address TLV\n\tIPv4: %s\n\tIfindex: 4\nMaximum Frame Size TLV\n\t9216\n' "$3"
    printf 'End of LLDPDU TLV\n\n'
    ;;
-link_stat)
    up=0 down=0 records=
    while IFS= read -r line; do
        case $line in
        *DOWN) down=$((down + 1)) ;;
        *) up=$((up + 1)) ;;
        esac
        records="[devid $2]    $line
$records"
    done <"$npu/link_stat"
    echo "[devid $2]current time        : $(LC_ALL=C date '+%a %b %e %H:%M:%S %Y')"
    echo "[devid $2]link up count       : $up"
    echo "[devid $2]link down count     : $down"
    echo "[devid $2]link change records :"
    printf %s "$records"
    ;;
*) command=rest ;;
esac
[ "$command" = rest ] || exit 0

# What follows is read only for what is asked seldom: the shell reads a script as far as it needs it.
command=$3
moving() { # sets $up to the seconds since boot, as a counter's clock
    read -r up rest </proc/uptime
    up=${up%.*}
}
counter() { # key value: prints the pair, with what a fault adds
    total=$2
    if [ -n "$counted" ]; then
        while read -r key value rate since; do
            [ "$key" != "$1" ] || total=$((total + value + rate * (up - since)))
        done <"$npu/counters"
    fi
    echo "$separator$1:$space$total"
}
target() { # kind address: sets $peer to the folder of the NPU that has the address, if it can answer at all
    peer= node=
    [ -f "$plane/$1/$2" ] || return 0
    read -r peer <"$plane/$1/$2"
    node=${peer%/*} peer=$plane/npus/$peer
    [ ! -f "$peer/gone" ] && [ ! -f "$plane/off/$node" ] || peer=
}
of_peer() { # name: sets $theirs
    theirs=
    [ ! -f "$peer/$1" ] || IFS= read -r theirs <"$peer/$1" || :
}
reaches() { # address: whether this NPU reaches it by RoCE
    target roce "$1"
    [ -n "$peer" ] || return 1
    of_peer link
    [ "$theirs" = UP ] || return 1
    get tls
    of_peer tls
    [ "$value" = "$theirs" ] || return 1
    # The two chips of one NPU do not reach each other by this way.
    [ "$platform" != a3 ] || [ "$peer" -ef "$npu" ] || ! [ "$peer" -ef "$npus/$((device ^ 1))" ] || return 1
    get ip
    [ "${value%.*}" != "${1%.*}" ] || return 0
    # In another network: both need a gateway that is there.
    get gateway
    of_peer gateway
    [ -n "$value" ] && [ -n "$theirs" ] && [ -f "$plane/gateways/$value" ] && [ -f "$plane/gateways/$theirs" ]
}

case $command in
-stat)
    moving
    [ ! -f "$npu/counters" ] || counted=yes
    get link
    [ "$value" = UP ] || up=600
    tx=$((up * 211 + $2 * 13)) rx=$((up * 207 + $2 * 11))
    echo "packet statistics:"
    for each in mac_tx_mac_pause_num mac_rx_mac_pause_num; do counter $each 0; done
    for way in tx rx; do
        counter mac_${way}_pfc_pkt_num $((up / 64))
        for priority in 0 1 2 3 4 5 6 7; do
            [ $priority = 4 ] && pfc=$((up / 64)) || pfc=0
            counter mac_${way}_pfc_pri${priority}_pkt_num $pfc
        done
    done
    for way in tx rx; do
        [ $way = tx ] && packets=$tx || packets=$rx
        counter mac_${way}_total_pkt_num $((packets * 3))
        counter mac_${way}_total_oct_num $((packets * 3 * 1100))
        counter mac_${way}_bad_pkt_num 0
        counter mac_${way}_bad_oct_num 0
    done
    counter mac_rx_fcs_err_pkt_num 0
    for way in rx tx; do
        [ $way = tx ] && packets=$tx || packets=$rx
        counter roce_${way}_rc_pkt_num $((packets * 2))
        counter roce_${way}_all_pkt_num $((packets * 2))
        counter roce_${way}_err_pkt_num 0
    done
    counter roce_cqe_num $((tx / 2))
    counter roce_rx_cnp_pkt_num $((up / 32))
    counter roce_tx_cnp_pkt_num $((up / 48))
    for each in unexpected_ack out_of_order verification_err qp_status_err new_pkt_rty ecn_db; do
        counter roce_${each}_num 0
    done
    counter nic_tx_all_pkg_num $((up * 2))
    counter nic_tx_all_oct_num $((up * 276))
    counter nic_rx_all_pkg_num $((up * 3))
    counter nic_rx_all_oct_num $((up * 225))
    ;;
-hw_stats)
    for each in pd_alloc=1 pd_dealloc=0 mr_alloc=0 mr_dealloc=0 cq_alloc=1 cq_dealloc=0 qp_alloc=1 qp_dealloc=0 \
        pd_active=1 mr_active=0 cq_active=1 qp_active=1 aeqe=0 ceqe=0; do
        echo "[devid $2] ${each%=*}: ${each#*=}"
    done
    ;;
-optical)
    get optical
    present=present temperature='41 C' vcc='3294.00 mV' tx='1.1021 mW' rx='0.9837 mW' bias='7.9360 mA' los=0x0
    case $value in
    absent) say 20 "Optical module is not present." ;;
    control) fail 15 "Control link unreachable." ;;
    los) rx='0.0001 mW' los=0xff ;;
    dim) rx='0.0612 mW' ;;
    hot) temperature='78 C' ;;
    copper) temperature='not supported' vcc=NA tx=NA rx=NA bias=NA los=NA ;;
    esac
    line() { printf '%-21s: %s\n' "$1" "$2"; }
    echo "optical info:"
    line present $present
    line temperature "$temperature"
    line 'high power enable reg' enabled
    line 'vendor name' EXAMPLE
    line 'vendor part number' EX-200G-SR4
    line 'vendor serial number' "$(printf 'EX%06d' "$2")"
    line 'vendor org unique id' 0x0-00-5e
    line 'vendor rev' A1
    line 'xsfp identifier' QSFP56
    line 'xsfp wave length' '850.00 nm'
    line 'manufact date code' 230817
    line Vcc "$vcc"
    for lane in 0 1 2 3; do line "Tx Power$lane" "$tx"; done
    for lane in 0 1 2 3; do line "Rx Power$lane" "$rx"; done
    line 'Vcc High Thres' '3465.00 mV'
    line 'Vcc Low Thres' '3135.00 mV'
    line 'Temp High Thres' '70 C'
    line 'Temp Low Thres' '0 C'
    line 'TxPower High Thres' '3.5481 mW'
    line 'TxPower Low Thres' '0.2818 mW'
    line 'RxPower High Thres' '3.5481 mW'
    line 'RxPower Low Thres' '0.1445 mW'
    for lane in 0 1 2 3; do line "Tx Bias$lane" "$bias"; done
    line 'Tx Los Flag' 0x0
    line 'Rx Los Flag' $los
    line 'Tx LoL Flag' 0x0
    line 'Rx LoL Flag' $los
    for side in Host Media; do
        for lane in 0 1 2 3; do line "$side SNR Lane$lane" 'not supported'; done
    done
    ;;
-ping)
    [ "$5" = address ] && [ -n "$6" ] || usage
    case $6 in *[!0-9.]* | *..* | .*) fail 6 "The ip address you configured is invalid!" ;; *.*.*.*) ;; *) usage ;; esac
    get link
    [ "$value" = UP ] || fail 22 "Execute failed: Link status is down."
    get ip
    [ -n "$value" ] || fail 1 "Command execute failed!"
    echo "device $2 PING $6"
    get lossy
    received=0 every=$value
    reaches "$6" || every=1
    for seq in 0 1 2; do
        if [ -n "$every" ] && [ $(((seq + 1) % every)) = 0 ]; then
            echo "recv time out seq=$seq"
        else
            received=$((received + 1))
            [ $seq = 0 ] && each=0.18 || each=0.04
            echo "recv seq=$seq,time=$each${seq}000ms"
        fi
    done
    case $received in 3) loss=0.00 ;; 2) loss=33.33 ;; 1) loss=66.67 ;; *) loss=100.00 ;; esac
    echo "3 packets transmitted, $received received, $loss% packet loss"
    [ $received = 3 ] || fail 1 "Command execute failed!"
    ;;
-hccs_ping)
    [ "$platform" = a3 ] || unsupported
    case $5 in
    address) address=$6 ;;
    sdid) address=192.$(($6 >> 22)).$((2 + ($6 >> 16 & 1))).$((199 - ($6 & 65535))) ;;
    *) usage ;;
    esac
    rest=${address#192.}
    index=${rest%%.*} rest=${rest#*.}
    case ${address%%.*},$index,$rest in
    192,*[!0-9]*,* | 192,,* | 192,???*,* | 192,*,*[!0-9.]*) fail 6 "The ip address you configured is invalid!" ;;
    192,*,[23].*) [ "$index" -le 47 ] || fail 6 "The ip address you configured is invalid!" ;;
    *) fail 6 "The ip address you configured is invalid!" ;;
    esac
    get vnic
    received=0 loss=100.00 plane_result=0x0
    target vnic "$address"
    if [ -n "$peer" ] && [ "$value" = UP ]; then
        of_peer vnic
        get hccs
        [ "$theirs" != UP ] || [ "$value" = NOK ] || received=3 loss=0.00
        of_peer hccs
        [ "$theirs" != NOK ] || received=0 loss=100.00
        get pod
        of_peer pod
        [ "$value" = "$theirs" ] || received=0 loss=100.00
    fi
    printf 'device %s PING %s\n\n' "$2" "$address"
    for seq in 0 1 2; do
        if [ $received = 3 ]; then
            printf 'This pkt ping success!\nrecv seq %s, time = 21.%s00us, L1 plane check result = %s\n\n' \
                $seq $seq $plane_result
        else
            printf 'This pkt check recv msg fail!\n\n'
        fi
    done
    echo "3 packets transmitted, $received received, $loss% packets loss"
    if [ $received = 3 ]; then
        printf 'max time 21.200us\nmin time 21.000us\naverage time 21.100us\nTP95 time 21.200us\n'
    else
        printf 'max time 0.000us\nmin time 0.000us\naverage time 0.000us\nTP95 time 0.000us\n'
    fi
    echo "Cmd executed successfully!"
    ;;
-fec)
    get fec
    echo "fec mode: ${value:-rs} FEC mode"
    ;;
-mtu)
    get mtu
    echo "mtu:${value:-8192}"
    ;;
-mac)
    get mac
    echo "mac addr: $value"
    ;;
-process)
    get hccp
    echo "device hccp process: ${value:-exist}"
    ;;
-cfg)
    get cfg
    echo "config status:${value:-SUCCESS}"
    ;;
-speed)
    get link
    if [ "$value" = UP ]; then echo "Speed: 200000 Mb/s"; else echo "Speed: Unknown!"; fi
    ;;
-duplex)
    get link
    if [ "$value" = UP ]; then echo "Duplex: Full"; else echo "Duplex: Unknown!"; fi
    ;;
-status)
    get link
    if [ "$value" = UP ]; then speed=200000Mb/s detected=yes; else speed=Unknown! detected=no; fi
    printf 'Netdev status:Settings for eth%s:\n\tSupported ports: [ Backplane ]\n' "$2"
    printf '\tSupported pause frame use: Symmetric\n\tSupports auto-negotiation: No\n'
    printf '\tSupported FEC modes: None\tRS\n\tAdvertised link modes:  Not reported\n'
    printf '\tSpeed: %s\n\tDuplex: Full\n\tLink detected: %s\n\n' $speed $detected
    ;;
*)
    echo "Get invalid major cmd type!" >&2
    fail 1 "Enter [ hccn_tool -h ] for more details."
    ;;
esac
