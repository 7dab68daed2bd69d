# kvbench completion for bash
_kvbench() {
    local line=${COMP_LINE:0:COMP_POINT} word candidate i IFS=$' \t\n'
    local -a words
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    local before=${word%"${word##*[=:]}"}  # readline replaces what comes after it
    [[ $COMP_WORDBREAKS == *=* ]] || before=
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$before"}")
    done < <("${words[0]}" completion --ask "${words[@]:1}" 2> /dev/null)
    for i in "${COMPREPLY[@]}"; do
        [[ $i == *[=./] ]] && type compopt &> /dev/null && compopt -o nospace 2> /dev/null
    done
    return 0
}
complete -o default -F _kvbench kvbench
