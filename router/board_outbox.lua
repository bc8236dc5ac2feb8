-- What waits to be published. ARGV: prefix, id ('' is any job), least age ms, most. Returns {field, text, ...}
local found, now = {}, now_ms()
local function add(field, text)
  if now - tonumber(string.match(text, '^%d+')) >= tonumber(ARGV[3]) then
    found[#found + 1] = field
    found[#found + 1] = text
  end
end
if ARGV[2] ~= '' then
  local fields = {ARGV[2] .. ':event'}
  for attempt = 1, tonumber(redis.call('HGET', P .. 'job:' .. ARGV[2], 'attempts') or 0) do
    fields[#fields + 1] = ARGV[2] .. ':' .. attempt
  end
  local texts = redis.call('HMGET', P .. 'outbox', unpack(fields))
  for i, field in ipairs(fields) do
    if texts[i] then add(field, texts[i]) end
  end
  return found
end
local cursor = '0'
repeat
  local page = redis.call('HSCAN', P .. 'outbox', cursor, 'COUNT', 200)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    if #found < 2 * tonumber(ARGV[4]) then add(page[2][i], page[2][i + 1]) end
  end
until cursor == '0' or #found >= 2 * tonumber(ARGV[4])
return found
