<?php
// What PHP finds under the selected names. As a program (`php readers.php`): lines as for readers.py. As the script of `php -S`: the
// multipart request itself.

function texts($value) {
    if (is_array($value)) {
        return array_merge([], ...array_map('texts', array_values($value)));
    }
    return $value === null ? [] : [is_bool($value) ? '' : (string) $value];
}

function selected($fields) {
    $within = fn($name, $key) => is_array($fields[$name] ?? null) ? $fields[$name][$key] ?? null : null;
    $found = [$fields['ssn'] ?? null, $fields['token'] ?? null, $fields['card_number'] ?? null];
    return texts([...$found, $within('user', 'ssn'), $within('card', 'number'), $within('items', 0)]);
}

if (PHP_SAPI === 'cli-server') {
    $files = array_map(fn($file) => array_map(fn($path) => @file_get_contents($path), texts($file['tmp_name'])), $_FILES);
    echo json_encode(array_merge(selected($_POST), selected($files)), JSON_INVALID_UTF8_SUBSTITUTE);
    return;
}
while (($line = fgets(STDIN)) !== false) {
    $case = json_decode($line, true);
    $text = base64_decode($case['text']);
    $found = [];
    if ($case['kind'] === 'json') {
        $document = json_decode($text, true);
        $found['php json'] = is_array($document) ? selected($document) : [];
    } elseif ($case['kind'] !== 'multipart') {
        parse_str($text, $fields);
        $found['php'] = selected($fields);
    }
    echo json_encode((object) $found, JSON_INVALID_UTF8_SUBSTITUTE), "\n";
}
