-- What a response was asked; false when that is gone. ARGV: prefix, id
return redis.call('GET', P .. 'input:' .. ARGV[2])
